"""Run a sweep: points in random order, interleaved with a control, each saved when done."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from tqdm import tqdm

from convtime.core.errors import InputError, first_line, one_line, shown
from convtime.core.provenance import provenance
from convtime.counting.chip import GpuChip
from convtime.counting.counters import CounterCache
from convtime.counting.counters import counters as read_counters
from convtime.counting.kernel_counters import Counters
from convtime.counting.names import resolve, split_names
from convtime.device.resolve import resolve_device
from convtime.sweeps.application import Application, read_applications
from convtime.sweeps.axes import Axes, read_axes
from convtime.sweeps.journal import Journal, opened
from convtime.sweeps.plan import ITERATIONS, SweepPlan, SweepPoint
from convtime.sweeps.result import Sweep
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.options import is_finite
from convtime.timing.signature import takes_options
from convtime.timing.snippet import raised_by
from convtime.timing.time_op import time_op

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import SweepOptions

# Number of points between two visits of the control.
_POINTS_BETWEEN_CONTROLS = 8
# Seconds before each run of iterations: the GPU cools down from the previous run.
_REST_BEFORE_ITERATIONS = 0.3
_LONGEST_REST = 86_400
# Counters need several passes per call, so at most this many calls are counted at a point.
_COUNTED_CALLS = 5
# Facts that distinguish machines with incomparable times.
_MACHINE = ("gpu", "cpu", "driver", "cuda", "cudnn", "torch", "convtime", "threads")


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
    every eighth point. Its times show whether the machine drifted. A point that fails is marked
    with its error, and the sweep continues.

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
        {options}

    Returns:
        All measurements, available as a table, a plot, or a Measurement per point.

    Raises:
        ValueError: axes, options or the file do not fit; raised before any measurement.
        TypeError: an option is unknown.
        KeyboardInterrupt: the run was interrupted; earlier measurements are in the file.
    """
    parsed = read_axes(axes, options)
    return run(
        read_applications(fn, parsed.parameters),
        parsed,
        file=file,
        counters=counters,
        rest=rest,
        seed=seed,
        progress=progress,
    )


def run(
    applications: Mapping[str, Application],
    axes: Axes,
    *,
    file: str | os.PathLike[str] | None = None,
    counters: str | Iterable[str] = (),
    rest: float | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Run :func:`sweep` on applications and axes that were already checked."""
    if rest is None:
        rest = _REST_BEFORE_ITERATIONS if axes.count_iterations else 0.0
    elif not (is_finite(rest) and 0 <= rest <= _LONGEST_REST):
        raise InputError(
            f"rest must be a number of seconds from 0 to {_LONGEST_REST} (a day), got {rest!r}"
        )
    if not (seed is None or (isinstance(seed, int) and not isinstance(seed, bool))):
        raise InputError(f"seed must be an integer, got {seed!r}")
    if not (file is None or isinstance(file, str | os.PathLike)):
        raise InputError(f"file must be a path, got {file!r}")
    device = resolve_device(axes.options.get("device"))
    names = split_names(counters) if counters else ()
    if names:
        _check_metrics(names, device)
    plan = SweepPlan(
        applications={name: each.identity for name, each in applications.items()},
        axes=axes.labels,
        options=_written(axes.options),
        counters=names,
        rest=float(rest),
        seed=random.SystemRandom().randrange(2**31) if seed is None else seed,
        machine=_machine(device),
    )
    _check_names(plan)
    path = None if file is None else Path(file)
    with opened(path, plan, seed_given=seed is not None) as journal:
        visits = _Visits(applications, axes, journal.plan)
        remaining = list(_remaining(journal))
        with tqdm(
            total=len(remaining),
            unit="visit",
            disable=(None if sys.stderr else True) if progress is None else not progress,
            leave=False,
        ) as bar:
            for point in remaining:
                bar.set_description_str(" ".join(point.name.split()))
                journal.add(visits.make(dataclasses.replace(point, visit=len(journal.visits))))
                bar.update()
        return Sweep.of_visits(journal.plan, journal.visits)


def _check_names(plan: SweepPlan) -> None:
    """Require unique names of points: labels that contain axis names could make them collide."""
    (name, count), *_ = collections.Counter(point.name for point in plan.points()).most_common(1)
    if count > 1:
        raise InputError(
            f"points must have unique names, got {count} points named {shown(name)}; give their "
            "values other labels with a mapping from labels to values"
        )


def _check_metrics(names: Iterable[str], device: torch.device) -> None:
    """Reject metrics that the GPU does not have; points report other reasons for missing counters.

    Raises:
        InputError: a metric is unknown; the message lists similar metrics.
    """
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            resolve(names, GpuChip(device))


def _written(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in JSON form, without those that apply to the process."""
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in options.items()
        if name not in ("stream", "log")
    }


def _machine(device: torch.device) -> dict[str, Any]:
    facts = provenance(device)
    return {what: facts[what] for what in _MACHINE if facts[what] is not None}


def _remaining(journal: Journal) -> Iterator[SweepPoint]:
    """Yield the remaining visits in order; nothing if all points are measured."""
    points = journal.plan.points()
    random.Random(journal.plan.seed).shuffle(points)  # noqa: S311 (no secret)
    done = {visit.key for visit in journal.visits if not (visit.control or visit.error)}
    left = [point for point in points if point.key not in done]
    if not left:
        return
    control = journal.plan.control
    for place, point in enumerate(left):
        if place % _POINTS_BETWEEN_CONTROLS == 0:
            yield control
        yield point
    yield control


@dataclasses.dataclass(frozen=True)
class _Visits:
    """Measure points, one visit at a time."""

    applications: Mapping[str, Application]
    axes: Axes
    plan: SweepPlan

    def make(self, point: SweepPoint) -> SweepPoint:
        """Return the point with its measurement, or with the error that prevented it."""
        time.sleep(self.plan.rest)
        try:
            return self._measured(point)
        except (Exception, SystemExit) as error:  # anything that the user's code raises
            return dataclasses.replace(point, error=_told(error))
        finally:
            # Cached blocks of this point's sizes rarely fit the next point.
            torch.cuda.empty_cache()

    def _measured(self, point: SweepPoint) -> SweepPoint:
        application = self.applications[point.application]
        candidate = application.candidate(self.axes.parameters_at(point.values), point.name)
        measured = time_op(candidate, **self.axes.options_at(point.values))
        counted, why_not = None, ""
        if self.plan.counters and not point.control:
            counted, why_not = self._counted(candidate, point, measured)
        return dataclasses.replace(
            point, measurement=measured, counters=counted, counters_reason=why_not
        )

    def _counted(
        self, candidate: Candidate, point: SweepPoint, measured: Measurement
    ) -> tuple[Counters | None, str]:
        """Return the counters, or why they are missing."""
        calls = point.values.get(ITERATIONS, _COUNTED_CALLS)
        assert isinstance(calls, int)
        cache: Any = measured.cache if measured.cache in get_args(CounterCache) else "cold"
        try:
            found = read_counters(
                candidate,
                metrics=self.plan.counters,
                repeats=min(calls, _COUNTED_CALLS),
                device=measured.device,
                cache=cache,
            )
        except Exception as error:
            return None, one_line(error) if isinstance(error, RuntimeError) else _told(error)
        return found, ""


def _told(error: BaseException) -> str:
    """Return why a point failed, in one line."""
    if isinstance(error, InputError):
        return one_line(error)
    return raised_by(error) or first_line(error)
