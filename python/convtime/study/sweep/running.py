"""Runs a sweep: its points in random order, with a control in between, each kept as it is done."""

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
from convtime.device.resolve import resolve_device
from convtime.results.counters import Counters
from convtime.results.measurement import Measurement
from convtime.results.sweep import Sweep
from convtime.results.sweep_plan import ITERATIONS, SweepPlan, SweepPoint
from convtime.study.sweep.application import Application, read_applications
from convtime.study.sweep.axes import Axes, read_axes
from convtime.study.sweep.journal import Journal, opened
from convtime.timing.candidate import Candidate
from convtime.timing.counters.chip import GpuChip
from convtime.timing.counters.names import resolve, split_names
from convtime.timing.counters.reading import CounterCache
from convtime.timing.counters.reading import counters as read_counters
from convtime.timing.options import is_finite, takes_options
from convtime.timing.snippet import raised_by
from convtime.timing.stopwatch import time_op

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import SweepOptions

# So many points are visited between two visits of the control.
_POINTS_BETWEEN_CONTROLS = 8
# Before a number of iterations, so that it does not begin with a GPU that the last one has heated.
_REST_BEFORE_ITERATIONS = 0.3
_LONGEST_REST = 86_400
# Counters take several passes each time, so that no more than these are read at a point.
_COUNTED_CALLS = 5
# What tells two machines apart on which times are not of the same thing.
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
    """Measures one application, or several, at each combination of the values of some axes.

    An axis is an option of ``time_op``, but for ``device``, ``stream`` and ``log``; or
    ``iterations``; or else a parameter of ``fn``. Where there is one of the last kind, ``fn`` is a
    factory: it is called with a point's values and returns what is timed, a callable without
    arguments or a :class:`convtime.Candidate`. Otherwise ``fn`` itself is timed.

    ``iterations`` are the consecutive calls of one run: after a rest and the calls that load and
    compile, so many calls are made and timed one by one, and these are the point's samples. Unless
    given, there is no warm-up, the cache is warm, tensors stay where they are, nothing holds the
    queue, and the GPU's clock is left alone.

    Points are visited in random order. One of them, the control, is visited first, last, and after
    every eighth point: its times tell whether the machine drifted. A point that fails is marked
    with its error, and the others are measured.

    Args:
        fn: what is measured, or several by name.
        axes: the values of each, which are numbers, texts, dtypes, memory formats or tuples of
            these; a mapping of names to values for any others.
        file: where each visit is written as it is done, a line of JSON each. Where it is there
            already, the sweep goes on: what failed is tried again, and what was measured is not
            measured again. The file of another sweep, or another machine, is refused.
        counters: metrics, or groups of them, of :func:`convtime.counters`; they are read at each
            point, too, of so many calls as there are iterations, and five at most. Where they
            cannot be read, the result says why.
        rest: seconds of idling before each visit; unless given, 0.3 where iterations are an axis,
            else none.
        seed: of the order of the points; unless given a random one, which is part of the result.
        progress: whether a bar is shown on standard error; unless given, on a terminal.
        {options}

    Returns:
        Everything that was measured, as a table, a picture, or a Measurement for each point.

    Raises:
        ValueError: for axes, options or a file that do not fit, before anything is measured.
        TypeError: for an option that there is not.
        KeyboardInterrupt: what was measured by then is in the file.
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
    """As :func:`sweep`, of applications and axes that have been found to fit."""
    if rest is None:
        rest = _REST_BEFORE_ITERATIONS if axes.count_iterations else 0.0
    elif not (is_finite(rest) and 0 <= rest <= _LONGEST_REST):
        raise InputError(
            f"rest must be a number of seconds, from 0 to {_LONGEST_REST} (a day), got {rest!r}"
        )
    if not (seed is None or (isinstance(seed, int) and not isinstance(seed, bool))):
        raise InputError(f"seed must be a whole number, got {seed!r}")
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
    """Points are known by their names, which labels with names of axes in them could make alike."""
    (name, count), *_ = collections.Counter(point.name for point in plan.points()).most_common(1)
    if count > 1:
        raise InputError(
            f"{count} points would be called {shown(name)}; give their values other labels, by a "
            "mapping from labels to values"
        )


def _check_metrics(names: Iterable[str], device: torch.device) -> None:
    """Refuses metrics that a GPU does not have; that none can be read is said at each point.

    Raises:
        InputError: with the nearest metrics.
    """
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            resolve(names, GpuChip(device))


def _written(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as JSON has them, less those that are the process's own."""
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in options.items()
        if name not in ("stream", "log")
    }


def _machine(device: torch.device) -> dict[str, Any]:
    facts = provenance(device)
    return {what: facts[what] for what in _MACHINE if facts[what] is not None}


def _remaining(journal: Journal) -> Iterator[SweepPoint]:
    """What is still to be visited, in order; nothing where everything has been measured."""
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
    """Makes visits of points."""

    applications: Mapping[str, Application]
    axes: Axes
    plan: SweepPlan

    def make(self, point: SweepPoint) -> SweepPoint:
        """The point with what was measured, or why it could not be."""
        time.sleep(self.plan.rest)
        try:
            return self._measured(point)
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            return dataclasses.replace(point, error=_told(error))
        finally:
            # Blocks cut for this point's sizes rarely fit the next one's.
            torch.cuda.empty_cache()

    def _measured(self, point: SweepPoint) -> SweepPoint:
        application = self.applications[point.application]
        candidate = application.candidate(self.axes.parameters_at(point.values), point.name)
        measured = _timed(candidate, self.axes.options_at(point.values))
        counted, why_not = None, ""
        if self.plan.counters and not point.control:
            counted, why_not = self._counted(candidate, point, measured)
        return dataclasses.replace(
            point, measurement=measured, counters=counted, counters_reason=why_not
        )

    def _counted(
        self, candidate: Candidate, point: SweepPoint, measured: Measurement
    ) -> tuple[Counters | None, str]:
        """What was counted, or why nothing was."""
        calls = point.values.get(ITERATIONS, _COUNTED_CALLS)
        assert isinstance(calls, int)
        cache: Any = measured.cache if measured.cache in get_args(CounterCache) else "cold"
        try:
            found = read_counters(
                candidate.fn,
                *candidate.args,
                kwargs=candidate.kwargs,
                metrics=self.plan.counters,
                name=candidate.name,
                setup=candidate.setup,
                backward=candidate.backward,
                repeats=min(calls, _COUNTED_CALLS),
                device=measured.device,
                cache=cache,
            )
        except Exception as error:
            return None, one_line(error) if isinstance(error, RuntimeError) else _told(error)
        return found, ""


def _timed(candidate: Candidate, options: Mapping[str, Any]) -> Measurement:
    return time_op(
        candidate.fn,
        *candidate.args,
        kwargs=candidate.kwargs,
        name=candidate.name,
        setup=candidate.setup,
        grad_to_none=candidate.grad_to_none,
        backward=candidate.backward,
        flops=candidate.flops,
        nbytes=candidate.nbytes,
        **options,
    )


def _told(error: BaseException) -> str:
    """Why a point failed, in one line."""
    if isinstance(error, InputError):
        return one_line(error)
    return raised_by(error) or first_line(error)
