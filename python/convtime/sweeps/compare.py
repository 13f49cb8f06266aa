"""Compare the times of several operations, once or at each point of some axes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from convtime.core.checks import require
from convtime.core.errors import InputError, shown
from convtime.sweeps.application import Application, read_applications
from convtime.sweeps.axes import Axes, read_axes
from convtime.sweeps.comparison_table import ComparisonTable
from convtime.sweeps.plan import ComparisonPlan, ComparisonPoint
from convtime.sweeps.scheduler import visit_all
from convtime.sweeps.worker import Worker, failure_of
from convtime.timing.candidate import Candidate, candidates_of, with_keywords
from convtime.timing.compare import Candidates, check_flags
from convtime.timing.compare import compare as compare_once
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.options import Options, SharedOptions, Stop
from convtime.timing.result_check import Check, check_results
from convtime.timing.sampling.measure import TimeLimit, reporting_errors
from convtime.timing.time_op import time_op

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack


_Axes = Mapping[str, Iterable[Any] | Mapping[str, Any]]


@overload
def compare(
    candidates: Candidates,
    over: None = None,
    *,
    baseline: str | None = None,
    check: Check | bool | None = "close",
    control: bool = False,
    interference: bool = True,
    confirm: bool = False,
    group: dist.ProcessGroup | None = None,
    stop: Stop | None = None,
    margin: float = 0.01,
    **options: Unpack[SharedOptions],
) -> Comparison: ...


@overload
def compare(
    candidates: Candidates,
    over: _Axes,
    *,
    file: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    executor: Executor | int | Literal["gpus"] | None = None,
    baseline: str | None = None,
    check: Check | bool | None = "close",
    control: bool = False,
    interference: bool = True,
    confirm: bool = False,
    group: dist.ProcessGroup | None = None,
    stop: Stop | None = None,
    margin: float = 0.01,
    **options: Unpack[SharedOptions],
) -> ComparisonTable: ...


@with_keywords(SharedOptions)
def compare(
    candidates: Candidates,
    over: _Axes | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    executor: Executor | int | Literal["gpus"] | None = None,
    baseline: str | None = None,
    check: Check | bool | None = "close",
    control: bool = False,
    interference: bool = True,
    confirm: bool = False,
    group: dist.ProcessGroup | None = None,
    stop: Stop | None = None,
    margin: float = 0.01,
    **options: Unpack[SharedOptions],
) -> Comparison | ComparisonTable:
    """Time several callables interleaved, so that drift affects all of them equally.

    Each round calls every candidate once, in random order; ``time_op`` does the same with one
    candidate. ``budget`` applies to the whole comparison. The default of ``stop`` is ``verdict``
    for several candidates and ``interval`` for one.

    With ``over``, the candidates are compared at each combination of the axes' values, each time
    with this budget. An axis is an option of ``time_op``, as for ``sweep``, or a parameter of the
    candidates. If any axis is a parameter, each candidate is a factory: it is called with a point's
    values, and returns a callable without arguments or a :class:`convtime.Candidate`. PyTorch's
    random numbers are the same for each factory, so that all draw the same inputs. The result tells
    which candidates are fastest at each point; differences count at a false-discovery rate of 5 %
    among all pairs of candidates at all points. A candidate that fails at a point is left out
    there.

    Args:
        candidates: callables without arguments, or with them (:class:`convtime.Candidate`), by name
            or in a sequence. In a mapping, a Candidate's own name is ignored; in a sequence,
            candidates with the same name are numbered.
        over: values of each axis, as for ``sweep``.
        file: only with ``over``: file to which each point is written when done. If the file exists,
            the comparison resumes, as a ``sweep`` does.
        seed: only with ``over``: seed of the order of the points. Default: random, and recorded.
        progress: only with ``over``: whether to show a progress bar on standard error. Default: on
            a terminal only.
        executor: only with ``over``: where the points are compared, as for ``sweep``.
        baseline: name of the candidate that the others are compared with. Default: the first one.
        check: whether further calls after the timing compare the candidates' results with the
            baseline's: ``close`` (within a tolerance for each dtype, see
            docs/explanation/comparing.md), ``exact`` (bit by bit), or None (no check). A different
            result is not an error; the comparison's ``same_results`` reports it.
        control: whether to time a duplicate of the baseline as an additional candidate. If it is
            found to differ, no verdict counts.
        interference: whether to time each candidate briefly in isolation, to find those whose time
            changes when it runs with the others. This takes up to a tenth of the comparison's time,
            or 0.02 s per candidate if that is more. Skipped in a regime other than ``as-is``.
        confirm: whether a fresh process repeats the comparison, which takes some seconds. A verdict
            that it does not confirm is ``uncertain``. This accounts for differences between
            processes, such as the state of memory. Functions must be defined in modules, which the
            process imports.
        group: process group whose ranks compare together, as for ``time_op``: each of them makes
            the same call. Neither results nor interference are then checked, and neither ``over``
            nor ``confirm`` can be used.
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
        margin: relative difference from the baseline's time that counts as equal.
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
        A :class:`convtime.Comparison`; with ``over``, a :class:`convtime.ComparisonTable`.

    Raises:
        ValueError: if there are no candidates, the baseline is not one of their names, or the
            margin is not positive; otherwise as ``time_op``.
        TypeError: for a candidate that is not callable, or an unknown option.
        TimeoutError: if ``timeout`` passes before the first sample.
    """
    flags: dict[str, Any] = {
        "control": control,
        "interference": interference,
        "confirm": confirm,
    }
    given: dict[str, Any] = {"margin": margin, **options}
    if stop is not None:
        given["stop"] = stop
    arguments = {"file": file, "seed": seed, "progress": progress, "executor": executor}
    with reporting_errors(group):
        if over is None:
            for name, argument in arguments.items():
                require(argument is None, f"{name} must be left out without over, got {argument!r}")
        else:
            require(group is None, "over cannot be used in a group of ranks; leave out over")
    if over is None:
        return compare_once(
            candidates, baseline=baseline, check=check, group=group, **flags, **given
        )
    result_check = check_flags(check, **flags)
    axes = read_axes(over, given, "compare")
    named: Mapping[Any, Any]
    if isinstance(candidates, Mapping):
        named = candidates
    else:
        names_of = (candidate.name for candidate in candidates_of(candidates))
        named = dict(zip(names_of, candidates, strict=True))
    if len(named) < 2:
        got = f"{shown(next(iter(named)))} alone; use sweep" if named else "none"
        raise InputError(f"over needs at least two candidates, got {got}")
    applications = read_applications(named, axes.parameters)
    names = [*applications]
    baseline = names[0] if baseline is None else baseline
    require(baseline in names, f"baseline must be one of {names}, got {baseline!r}")
    return run(applications, axes, baseline, result_check, flags, **arguments)


def run(
    applications: Mapping[str, Application],
    axes: Axes,
    baseline: str,
    check: Check | None,
    flags: Mapping[str, Any],
    **arguments: Any,
) -> ComparisonTable:
    """Run :func:`compare` on candidates and axes that were already checked.

    Args:
        applications: the candidates by name.
        axes: the axes, and the timing options with ``margin``.
        baseline: as for ``compare``.
        check: as for ``compare``.
        flags: further arguments of ``compare`` that are no timing options.
        arguments: ``file``, ``seed``, ``progress`` and ``executor``, as for ``sweep``.
    """
    table: ComparisonTable = visit_all(
        ComparisonPlan,
        _ComparingWorker(applications, axes, baseline, check, flags),
        {**axes.options, **flags, "check": check},
        baseline=baseline,
        margin=float(axes.options["margin"]),
        **arguments,
    )
    return table


@dataclasses.dataclass
class _ComparingWorker(Worker[ComparisonPoint]):
    """Compares candidates at points.

    Attributes:
        baseline: the candidate that ratios and results refer to.
        check: how results are compared; None for no check.
        flags: further arguments of ``compare`` that are no timing options.
    """

    baseline: str
    check: Check | None
    flags: Mapping[str, Any]

    def measure(self, point: ComparisonPoint) -> ComparisonPoint:
        errors: dict[str, str] = {}
        timed: list[tuple[float, Candidate]] = []
        for name in self.applications:
            try:
                timed.append(self._in_isolation(name, point))
            except (Exception, SystemExit) as error:  # noqa: PERF203 (the user's code)
                errors[name] = failure_of(error)
        # The sampler settles the verdicts on all candidates against the first one, and the question
        # is which one is fastest.
        candidates = [candidate for _, candidate in sorted(timed, key=lambda pair: pair[0])]
        if not candidates:
            return dataclasses.replace(point, errors=errors)
        options = self.axes.options_at(point.values)
        if len(candidates) == 1 and options.get("stop") == "verdict":
            del options["stop"]
        try:
            compared = compare_once(candidates, check=None, **self.flags, **options)
            agreements = self._agreements(candidates, options)
        except (Exception, SystemExit) as error:  # anything that the user's code raises
            reason = f"together with others, {failure_of(error)}"
            errors |= dict.fromkeys((candidate.name for candidate in candidates), reason)
            return dataclasses.replace(point, errors=errors)
        return dataclasses.replace(
            point, comparison=compared, errors=errors, same_results=agreements
        )

    def _in_isolation(self, name: str, point: ComparisonPoint) -> tuple[float, Candidate]:
        """Return a candidate's time in isolation, and the candidate.

        The timing is brief. It finds candidates that fail, and makes their first calls.
        """
        with _same_random_numbers(self.device):
            parameters = self.axes.parameters_at(point.values)
            candidate = self.applications[name].candidate(parameters, name)
        options = self.axes.options_at(point.values) | {
            "quick": True,
            "regime": "as-is",
            "stop": "interval",
            "min_samples": 2,
        }
        del options["margin"]
        measured = time_op(candidate.but(flops=None, nbytes=None), **options)
        return measured.median, _with_flops(candidate)

    def _agreements(
        self, candidates: Sequence[Candidate], options: Mapping[str, Any]
    ) -> Mapping[str, Agreement]:
        """Compare results with the baseline's, or with the first one's if the baseline failed."""
        if self.check is None or len(candidates) < 2:
            return {}
        order = [self.baseline, *self.applications]
        chosen = Options(**options)
        return check_results(
            sorted(candidates, key=lambda candidate: order.index(candidate.name)),
            self.check,
            chosen,
            TimeLimit(chosen.timeout),
        )


@contextlib.contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """Have PyTorch draw the same numbers each time, so that all candidates get the same inputs.

    The caller's generators continue as if nothing had been drawn.
    """
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        torch.default_generator.manual_seed(0)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(0)
        yield


def _with_flops(candidate: Candidate) -> Candidate:
    """Return the candidate with the FLOPs of its PyTorch operations, if it does not state them.

    Kernels that PyTorch does not know, and operations without a formula, are not counted, so a
    candidate that has any FLOPs has at least these.
    """
    if candidate.flops is not None or candidate.backward or candidate.before is not None:
        return candidate
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, for some 0.3 s

    counter = FlopCounterMode(display=False)
    with contextlib.suppress(Exception), counter:  # some calls do not support PyTorch's modes
        candidate.fn(*candidate.args, **candidate.kwargs)
        if counter.get_total_flops() > 0:
            return candidate.but(flops=float(counter.get_total_flops()))
    return candidate
