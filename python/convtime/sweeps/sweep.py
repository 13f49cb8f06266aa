"""Run a sweep: points in random order, interleaved with a control, each saved when done."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, get_args

import torch

from convtime.core.errors import InputError, one_line
from convtime.counting.chip import GpuChip
from convtime.counting.counters import CounterCache
from convtime.counting.counters import counters as read_counters
from convtime.counting.kernel_counters import Counters
from convtime.counting.metrics import resolve, split_names
from convtime.sweeps.application import Application, read_applications
from convtime.sweeps.axes import Axes, read_axes
from convtime.sweeps.executing import Workers
from convtime.sweeps.plan import ITERATIONS, SweepPlan, SweepPoint
from convtime.sweeps.scheduler import visit_all
from convtime.sweeps.sweep_table import Sweep
from convtime.sweeps.worker import Maker, failure_of
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.options import is_finite
from convtime.timing.signature import takes_options
from convtime.timing.time_op import time_op

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import SweepOptions

# Seconds before each run of iterations: the GPU cools down from the previous run.
_REST_BEFORE_ITERATIONS = 0.3
_LONGEST_REST = 86_400
# Counters need several passes per call, so at most this many calls are counted at a point.
_COUNTED_CALLS = 5


@takes_options("margin")
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
        {options}

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
    """
    if rest is None:
        rest = _REST_BEFORE_ITERATIONS if axes.count_iterations else 0.0
    elif not (is_finite(rest) and 0 <= rest <= _LONGEST_REST):
        raise InputError(
            f"rest must be a number of seconds from 0 to {_LONGEST_REST} (a day), got {rest!r}"
        )
    visits = _Visits(applications, axes, split_names(counters) if counters else (), float(rest))
    if visits.counters and not isinstance(executor, Executor):  # which may be on other machines
        _check_metrics(visits.counters, visits.device)
    swept: Sweep = visit_all(
        SweepPlan,
        visits,
        axes.options,
        executor=executor,
        counters=visits.counters,
        rest=visits.rest,
        **arguments,
    )
    return swept


def _check_metrics(names: Iterable[str], device: torch.device) -> None:
    """Reject metrics that the GPU does not have; points report other reasons for missing counters.

    Raises:
        InputError: a metric is unknown; the message lists similar metrics.
    """
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            resolve(names, GpuChip(device))


@dataclasses.dataclass(frozen=True)
class _Visits(Maker[SweepPoint]):
    """Measures points.

    Attributes:
        counters: the metrics to read.
        rest: idle seconds before each point.
    """

    counters: tuple[str, ...]
    rest: float

    def make(self, point: SweepPoint) -> SweepPoint:
        """Return the point with its measurement, or with the error that prevented it."""
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
