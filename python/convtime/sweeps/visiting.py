"""Visit the points of a plan in random order: hand them to workers, and save each when done."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    wait,
)
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from convtime.core.errors import InputError, first_line, shown
from convtime.sweeps.executing import Crew
from convtime.sweeps.journal import Journal, opened
from convtime.sweeps.plan import Plan, Point
from convtime.sweeps.worker import Report

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
        remaining = _remaining(journal)
        with tqdm(
            total=len(remaining),
            unit="point",
            disable=(None if sys.stderr else True) if progress is None else not progress,
            leave=False,
        ) as bar:
            try:
                _hand_out(remaining, crew, journal, bar)
            except (BrokenExecutor, CancelledError) as error:
                left = len(_remaining(journal))
                kept = (
                    "give file= to keep the others"
                    if path is None
                    else (f"{path} has the others, and the same call continues there")
                )
                raise BrokenExecutor(
                    f"executor broke before {left} of {len(plan.points())} points were measured "
                    f"({first_line(error)}); {kept}"
                ) from error
        return journal


def _hand_out(
    points: Sequence[Point], crew: Crew[Point], journal: Journal[Point], bar: tqdm[NoReturn]
) -> None:
    """Give the points to the workers one by one, and write each when it is done.

    An executor does not tell how many processes it has, so as many points are handed out as keep
    twice the processes busy that have answered so far.
    """
    left = collections.deque(points)
    control = journal.plan.control
    pending: dict[Future[Report[Point]], Point] = {}
    processes = {""}  # there is at least one, whose name is not known yet
    try:
        while left or pending:
            known = max(1, len(processes) - 1)
            is_free = bool(left) and len(pending) < _POINTS_PER_PROCESS * known
            if is_free:
                point = left.popleft()
                bar.set_description_str(" ".join(point.name.split()))
                is_last = len(left) < known
                pending[crew.submit(point, control, is_last=is_last)] = point
            # In this process, a point is done now, and is written before the next begins.
            done, _ = wait(pending, 0 if is_free else None, FIRST_COMPLETED)
            for future in sorted(done, key=_is_broken):  # the others are written first
                report = _report_of(future, pending.pop(future), journal.plan)
                processes.add(report.process)
                for visit in report.visits:
                    number = len(journal.visits)
                    journal.add(dataclasses.replace(visit, visit=number))  # type: ignore[type-var]
                bar.update()
    finally:
        for future in pending:
            future.cancel()


def _is_broken(future: Future[Any]) -> bool:
    return future.cancelled() or isinstance(future.exception(), BrokenExecutor | InputError)


def _report_of(future: Future[Report[Point]], point: Point, plan: Plan[Point]) -> Report[Point]:
    """Return a worker's report; if the worker was lost, the point has failed."""
    try:
        return future.result()
    except (BrokenExecutor, InputError):
        raise
    except Exception as error:  # an executor has its own exceptions for killed workers
        return Report((plan.failed(point, first_line(error)),), "")


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
