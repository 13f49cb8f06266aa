"""Run a sweep: points in random order, interleaved with a control, each saved when done."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, get_args

from convtime.core.checks import is_finite, require
from convtime.core.errors import one_line
from convtime.counting.chip import GpuChip
from convtime.counting.counters import CounterCache
from convtime.counting.counters import counters as read_counters
from convtime.counting.metrics import resolve, split_names
from convtime.counting.results import Counters
from convtime.sweeps.application import Application, read_applications
from convtime.sweeps.axes import Axes, read_axes
from convtime.sweeps.executing import Workers
from convtime.sweeps.plan import ITERATIONS, SweepPlan, SweepPoint
from convtime.sweeps.scheduler import visit_all
from convtime.sweeps.sweep_table import Sweep
from convtime.sweeps.worker import Worker, failure_of
from convtime.timing.candidate import Candidate, with_keywords
from convtime.timing.measurement import Measurement
from convtime.timing.options import SweepOptions
from convtime.timing.time_op import time_op

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Seconds before each run of iterations: the GPU cools down from the previous run.
_REST_BEFORE_ITERATIONS = 0.3
_LONGEST_REST = 86_400
# Counters need several passes per call, so at most this many calls are counted at a point.
_COUNTED_CALLS = 5


@with_keywords(SweepOptions)
def sweep(
    fn: Callable[..., object] | Candidate | Mapping[str, Callable[..., object] | Candidate],
    axes: Mapping[str, Iterable[Any] | Mapping[str, Any]],
    *,
    file: str | os.PathLike[str] | None = None,
    counters: str | Iterable[str] = (),
    rest: float | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    executor: Workers = None,
    **options: Unpack[SweepOptions],
) -> Sweep:
    """Measure one or several applications at each combination of the axes' values.

    An axis is one of three kinds: an option of ``time_op`` other than ``device``, ``stream`` and
    ``log``; ``iterations``; or a parameter of ``fn``. If any axis is a parameter, ``fn`` is a
    factory. It is called with a point's values and returns a callable without arguments or a
    :class:`convtime.Candidate`, which is timed. Otherwise ``fn`` itself is timed.

    ``iterations`` is the number of consecutive calls of one run. After a rest and the calls that
    load and compile, this many calls are made and timed one by one; they are the point's samples.
    By default, such a run has no warm-up, a warm cache and fixed tensor addresses, does not hold
    the queue, and leaves the GPU's clock unchanged.

    Points are visited in random order. One point, the control, is visited first, last and after
    every eighth point, or after three minutes if that is sooner. Its times show whether the machine
    drifted. A point that fails is marked with its error, and the sweep continues.

    Args:
        fn: application to measure, or a mapping of names to several.
        axes: values of each axis: numbers, strings, dtypes, memory formats or tuples of these. For
            other values, pass a mapping of names to values.
        file: file to which each visit is written when done, as one line of JSON. If the file
            exists, the sweep resumes: failed points are retried, and measured points are skipped.
            The file of a different sweep or machine is rejected.
        counters: metrics, or groups of metrics, of :func:`convtime.counters` to read at each point.
            They are read over as many calls as there are iterations, at most five. If they cannot
            be read, the result says why.
        rest: idle seconds before each visit. Default: 0.3 if iterations are an axis, else 0.
        seed: seed of the order of the points. Default: random, and recorded in the result.
        progress: whether to show a progress bar on standard error. Default: on a terminal only.
        executor: processes that measure points at the same time: ``"gpus"`` for one on each GPU; a
            number of processes, each with its own GPU, or with its share of the CPUs if the device
            is the CPU; or any ``concurrent.futures.Executor`` whose processes make one call at a
            time, such as those of Dask (``client.get_executor()``), mpi4py and loky. Each process
            visits the control before its first point, in between and last, and the result tells
            whether their times differ (``workers()``). What is timed must be defined in modules,
            because processes import it, or in a script that runs only under
            ``if __name__ == "__main__"``. An executor that is passed is not shut down. Default: all
            points are measured in this process.
        method: ``kernel`` (device time of the kernels, copies and memsets that the call issues on
            any stream, from CUPTI records), ``event`` (time between two CUDA events on the current
            stream, minus the overhead of the events), ``graph`` (time of one of many calls captured
            in CUDA graphs, minus the gap between them), ``sync`` (host time between two idle states
            of the device), ``cpu`` (host time of the call, on an idle device) or ``auto``: for work
            on a GPU kernel, or event if CUPTI is unavailable (sync if the work uses several GPUs);
            for work on the CPU cpu.
        metric: which time of a call's kernels, copies and memsets is the result and is compared:
            ``busy`` (time during which at least one of them ran), ``span`` (from the first start to
            the last end, including gaps) or ``sum`` (sum of their durations, more than busy if they
            overlap). Only for the method ``kernel``; other methods measure the elapsed time.
        queue: ``gate`` blocks the GPU until a batch of calls is issued, so that short calls are not
            timed as gaps between launches; ``sleep`` does the same with a kernel that sleeps for an
            estimated time; ``none`` does not block the GPU. A callable that synchronizes with the
            GPU cannot be queued; the result then says so.
        cache: ``cold`` overwrites the cache before each call, outside the timed region: the L2
            cache of a GPU, or all caches of the CPU, which takes milliseconds. The call then also
            causes the write-back of that data, as after a kernel that writes; ``cold-clean`` reads
            other data into a GPU's L2 cache instead, so that nothing needs to be written back, as
            after a kernel that reads; ``rotate`` (GPU only) gives each call different copies of its
            tensors, enough copies that each is evicted before it is reused; ``warm`` leaves the
            cache in the state after the previous call; ``auto`` is cold on a GPU, and leaves a
            CPU's cache alone.
        placement: ``random`` gives each call different copies of its tensors, at random multiples
            of 512 bytes, so that the times do not represent a single choice of addresses, which
            alone changes them by percents; ``aligned`` does so at multiples of 2 MiB; ``as-is``
            uses the tensors passed by the caller; ``auto`` is random for work on a GPU if all of
            its tensors can be copied and no call after the first modifies them. If the request
            cannot be met, the result says why.
        pages: memory pages of the tensors that calls allocate, for work on the CPU. ``fresh``:
            pages that were never touched, which the operating system maps and zeroes during the
            call, as in a first call; ``retained``: pages of earlier results, which are already
            mapped, as in a program that reuses its memory; ``as-is``: pages from the C library's
            allocator, which depend on earlier allocations of the process; ``auto``: retained on the
            CPU, as-is on a GPU.
        regime: ``burst`` lets the GPU idle between batches of calls, long enough to keep it at the
            highest clock that it reaches with these calls; ``sustained`` runs calls back to back
            until times and clocks stop drifting, for 2.5 s to 8 s, and times some of them without a
            pause; ``as-is`` uses the GPU in its current state; ``auto`` starts like as-is and
            changes to ``burst`` if the calls lower the clock. If the GPU does not reach the
            requested state, the result's ``regime`` is ``as-is``, and the result says why.
            ``budget`` does not count idle time, but counts the calls between the timed ones. After
            10 s of idle time in total, sampling stops as if the budget were used up.
        clocks: ``observe`` does not change the GPU's clocks; ``lock`` locks them during the timing
            (see :func:`convtime.locked_clocks`).
        pin: number of the CPU that the calling thread is pinned to during the timing. Existing
            threads, such as torch's, are not moved; threads that the calls start inherit the pin.
        device: device of the work. Default: the GPU of the first CUDA tensor found in arguments,
            closure or module parameters; the CPU if only CPU tensors are found; the current GPU (if
            there is one) if no tensor is found.
        stream: stream that is current during the calls. Default: the current stream.
        warmup: ``steady``: until times and clocks stop drifting, for 0.01 s to 1 s (or to the
            budget, if that is less), and the steady calls already count as samples; on a GPU with
            ``regime='as-is'`` at least 0.08 s, because its clock may take that long to fall; an
            int: number of calls; a float: seconds. At least one call is always made, and sixteen
            more if a call on the CPU is too short for the host's clock.
        stop: when sampling stops, in addition to ``max_samples`` and ``budget``: ``interval`` (half
            the width of the median's 95 % interval is at most ``tolerance`` times the median),
            ``noise`` (the standard deviation is at most ``tolerance`` times the mean, or no longer
            changes), ``entropy`` (the distribution of the samples no longer changes), ``verdict``
            (``compare`` only: the verdict on each candidate against the first is settled),
            ``count`` (only max_samples) or ``budget`` (only the budget, and max_samples if given).
        tolerance: relative tolerance of ``interval`` and ``noise``.
        min_samples: minimum number of samples, even beyond the budget. Five or fewer give no 95 %
            interval.
        max_samples: maximum number of samples, for every ``stop``. Default: 10,000, or unlimited
            with ``stop='budget'``.
        budget: seconds after which sampling stops, not counting warm-up and idle time.
        quick: whether the whole call takes about 10 ms per candidate: one untimed call in place of
            a steady warm-up, fewer placements, no idling (``regime='auto'`` becomes ``as-is``), and
            sampling until the 10 ms are over, if no other limit ends it before. A longer call is
            timed five times, unless ``min_samples`` is given; five give no 95 % interval. For a
            choice among many candidates, such as an autotuner's.
        timeout: seconds after which the whole call ends, including waiting and warm-up: with the
            samples taken so far (the result's ``stop_reason`` is ``timeout``), or with a
            TimeoutError if there are none. It ends every wait for the GPU, which may continue its
            work; it does not interrupt a call that does not return. None: no limit.
        exclusive: whether processes and threads of this user take turns on a GPU: each waits until
            the GPU is free, for at most a minute, and blocks the others while it times. The result
            says how long it waited, and why if it did not have the GPU to itself.
        log: called after each batch with a :class:`convtime.BatchRecord`: ``print``, a logger's
            ``info`` or a list's ``append``. An exception that it raises ends the timing.

    Returns:
        All measurements, available as a table, a plot, or a Measurement per point.

    Raises:
        ValueError: axes, options, the file or the executor do not fit; raised before any
            measurement, except for a worker that differs from the first.
        BrokenExecutor: the executor cannot continue; earlier measurements are in the file.
        TypeError: an option is unknown.
        KeyboardInterrupt: the run was interrupted; earlier measurements are in the file.
    """
    parsed = read_axes(axes, options)
    return run(
        read_applications(fn, parsed.parameters),
        parsed,
        counters=counters,
        rest=rest,
        file=file,
        seed=seed,
        progress=progress,
        executor=executor,
    )


def run(
    applications: Mapping[str, Application],
    axes: Axes,
    *,
    counters: str | Iterable[str] = (),
    rest: float | None = None,
    executor: Workers = None,
    **arguments: Any,
) -> Sweep:
    """Run :func:`sweep` on applications and axes that were already checked.

    Args:
        applications: the applications by name.
        axes: the axes, and the options.
        counters: as for ``sweep``.
        rest: as for ``sweep``.
        executor: as for ``sweep``.
        arguments: ``file``, ``seed`` and ``progress``.

    Raises:
        InputError: as for ``sweep``, e.g. for a metric that the GPU does not have.
    """
    if rest is None:
        rest = _REST_BEFORE_ITERATIONS if ITERATIONS in axes.values else 0.0
    require(
        is_finite(rest) and 0 <= rest <= _LONGEST_REST,
        f"rest must be a number of seconds from 0 to {_LONGEST_REST} (a day), got {rest!r}",
    )
    worker = _TimingWorker(
        applications, axes, split_names(counters) if counters else (), float(rest)
    )
    may_be_elsewhere = isinstance(executor, Executor)
    if worker.counters and worker.device.type == "cuda" and not may_be_elsewhere:
        with contextlib.suppress(RuntimeError):  # points report why counters are missing
            resolve(worker.counters, GpuChip(worker.device))
    swept: Sweep = visit_all(
        SweepPlan,
        worker,
        axes.options,
        executor=executor,
        counters=worker.counters,
        rest=worker.rest,
        **arguments,
    )
    return swept


@dataclasses.dataclass
class _TimingWorker(Worker[SweepPoint]):
    """Measures points.

    Attributes:
        counters: the metrics to read.
        rest: idle seconds before each point.
    """

    counters: tuple[str, ...]
    rest: float

    def measure(self, point: SweepPoint) -> SweepPoint:
        time.sleep(self.rest)
        try:
            application = self.applications[point.application]
            candidate = application.candidate(self.axes.parameters_at(point.values), point.name)
            measured = time_op(candidate, **self.axes.options_at(point.values))
            counters, reason = self._counted(candidate, point, measured)
        except (Exception, SystemExit) as error:  # anything that the user's code raises
            return dataclasses.replace(point, error=failure_of(error))
        return dataclasses.replace(
            point, measurement=measured, counters=counters, counters_reason=reason
        )

    def _counted(
        self, candidate: Candidate, point: SweepPoint, measured: Measurement
    ) -> tuple[Counters | None, str]:
        """Return the counters, or why they are missing."""
        if point.control or not self.counters:
            return None, ""
        calls = point.values.get(ITERATIONS, _COUNTED_CALLS)
        assert isinstance(calls, int)
        cache: Any = measured.cache if measured.cache in get_args(CounterCache) else "cold"
        try:
            counted = read_counters(
                candidate,
                metrics=self.counters,
                repeats=min(calls, _COUNTED_CALLS),
                device=measured.device,
                cache=cache,
            )
        except Exception as error:
            return None, one_line(error) if isinstance(error, RuntimeError) else failure_of(error)
        return counted, ""
