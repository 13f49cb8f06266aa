"""Visit the points of a plan in random order: hand them to workers, and save each when done."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
from collections.abc import Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    wait,
)
from pathlib import Path
from typing import Any, Generic

from convtime.core.errors import InputError, first_line, shown
from convtime.sweeps.executing import ANSWER_SECONDS, Crew, wait_aloud
from convtime.sweeps.journal import Journal, opened
from convtime.sweeps.plan import Plan, Point
from convtime.sweeps.worker import Report
from convtime.view.progress import ProgressBar

# Points that a process has at a time: one that it measures, and one that waits for it.
_POINTS_PER_PROCESS = 2


def check_arguments(file: object, seed: object) -> None:
    """Check the arguments that all runs over axes share.

    Raises:
        InputError: one has another type.
    """
    if not (seed is None or (isinstance(seed, int) and not isinstance(seed, bool))):
        raise InputError(f"seed must be an integer, got {seed!r}")
    if not (file is None or isinstance(file, str | os.PathLike)):
        raise InputError(f"file must be a path, got {file!r}")


def drawn(seed: int | None) -> int:
    """Return the seed, or a random one."""
    return random.SystemRandom().randrange(2**31) if seed is None else seed


def written(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in JSON form, without those that apply to the process."""
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in options.items()
        if name not in ("stream", "log")
    }


def visit_all(
    plan: Plan[Point],
    crew: Crew[Point],
    *,
    file: str | os.PathLike[str] | None,
    seed: int | None,
    progress: bool | None,
) -> Journal[Point]:
    """Visit each point that the file does not have yet.

    Args:
        plan: plan of the run.
        crew: the workers that measure the points.
        file: file to resume from and to write to.
        seed: seed that the caller gave; None if the file's may replace the plan's.
        progress: whether to show a progress bar. Default: on a terminal only.

    Raises:
        InputError: points have equal names, or as :func:`opened`.
        BrokenExecutor: the workers cannot go on.
    """
    _check_names(plan)
    path = None if file is None else Path(file)
    with opened(path, plan, seed_given=seed is not None) as journal:
        with ProgressBar(len(_remaining(journal)), "point", shown=progress) as bar:
            try:
                _HandOut(crew, journal, bar).run()
            except (BrokenExecutor, CancelledError) as error:
                left = len(_remaining(journal))
                kept = f"{path} has the others, and the same call continues there"
                if path is None:
                    kept = "give file= to keep the others"
                raise BrokenExecutor(
                    f"executor broke before {left} of {len(plan.points())} points were measured "
                    f"({first_line(error)}); {kept}"
                ) from error
        return journal


class _HandOut(Generic[Point]):
    """Gives points to workers one by one, and writes each when it is done.

    An executor does not tell how many processes it has, so as many points are handed out as keep
    those processes busy that have answered so far, and as many again.

    If a worker is lost, its point is tried again without the control, which tells whether the point
    or the control ends processes.
    """

    def __init__(self, crew: Crew[Point], journal: Journal[Point], bar: ProgressBar) -> None:
        self._crew = crew
        self._journal = journal
        self._bar = bar
        self._left = collections.deque(_remaining(journal))
        self._control: Point | None = journal.plan.control
        self._lost: dict[tuple[str, ...], str] = {}  # why points are tried again, by their keys
        # The points that are out, and the control that was sent with them.
        self._pending: dict[Future[Report[Point]], tuple[Point, Point | None]] = {}
        self._processes: set[str] = set()

    def run(self) -> None:
        """Visit all points.

        Raises:
            BrokenExecutor: the executor cannot go on.
            CancelledError: somebody else shut it down.
            InputError: a worker does not fit the run.
        """
        try:
            while self._left or self._pending:
                known = max(1, len(self._processes))
                is_free = bool(self._left) and len(self._pending) < _POINTS_PER_PROCESS * known
                if is_free:
                    self._submit(self._left.popleft(), is_last=len(self._left) < known)
                # In this process, a point is done now, and is written before the next begins.
                if is_free:
                    done, _ = wait(self._pending, 0, FIRST_COMPLETED)
                else:
                    done = wait_aloud(self._pending, ANSWER_SECONDS)
                for future in sorted(done, key=_ends_run):  # the others are written first
                    self._take(*self._pending.pop(future), future)
        finally:
            for future in self._pending:
                future.cancel()
            for future, sent in self._pending.items():  # done since the last wait
                if future.done() and not future.cancelled() and future.exception() is None:
                    self._take(*sent, future)

    def _submit(self, point: Point, *, is_last: bool) -> None:
        self._bar.update(description=" ".join(point.name.split()))
        control = None if point.key in self._lost else self._control
        self._pending[self._crew.submit(point, control, is_last=is_last)] = point, control

    def _take(self, point: Point, control: Point | None, future: Future[Report[Point]]) -> None:
        """Write the visits that a worker reports, or why it was lost."""
        plan = self._journal.plan
        lost = None if _ends_run(future) else future.exception()
        if lost is None:
            report = future.result()
            self._processes.add(report.process)
            self._write(*report.visits)
            if self._control is not None and point.key in self._lost:
                self._write(plan.failed(self._control, self._lost[point.key]))
                self._control = None
        else:
            error = first_line(lost)  # an executor has its own exceptions for killed workers
            if control is not None:  # which may be at fault, even if no others get it by now
                self._lost[point.key] = error
                self._left.appendleft(point)
                return
            self._write(plan.failed(point, error))
        self._bar.update(advance=1)

    def _write(self, *visits: Point) -> None:
        for visit in visits:
            number = len(self._journal.visits)
            self._journal.add(dataclasses.replace(visit, visit=number))  # type: ignore[type-var]


def _ends_run(future: Future[Any]) -> bool:
    return future.cancelled() or isinstance(future.exception(), BrokenExecutor | InputError)


def _check_names(plan: Plan[Any]) -> None:
    """Require unique names of points: labels that contain axis names could make them collide."""
    (name, count), *_ = collections.Counter(point.name for point in plan.points()).most_common(1)
    if count > 1:
        raise InputError(
            f"points must have unique names, got {count} points named {shown(name)}; give their "
            "values other labels with a mapping from labels to values"
        )


def _remaining(journal: Journal[Point]) -> list[Point]:
    """Return the points that are not measured yet, in the order of the seed."""
    points = journal.plan.points()
    random.Random(journal.plan.seed).shuffle(points)  # noqa: S311 (no secret)
    done = {visit.key for visit in journal.visits if not (visit.control or visit.has_failed)}
    return [point for point in points if point.key not in done]
