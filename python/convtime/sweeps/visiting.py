"""Visit the points of a plan in random order, interleaved with a control, each saved when done."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from convtime.core.errors import InputError, first_line, one_line, shown
from convtime.core.provenance import provenance
from convtime.sweeps.journal import Journal, opened
from convtime.sweeps.plan import Plan, Point
from convtime.timing.snippet import raised_by

# Number of points between two visits of the control.
_POINTS_BETWEEN_CONTROLS = 8
# Facts that distinguish machines with incomparable times.
_MACHINE = ("gpu", "cpu", "driver", "cuda", "cudnn", "torch", "convtime", "threads")


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


def machine_of(device: torch.device) -> dict[str, Any]:
    """Return the facts that must be the same when a run is resumed."""
    facts = provenance(device)
    return {what: facts[what] for what in _MACHINE if facts[what] is not None}


def visit_all(
    plan: Plan[Point],
    make: Callable[[Point], Point],
    *,
    file: str | os.PathLike[str] | None,
    seed: int | None,
    progress: bool | None,
) -> Journal[Point]:
    """Visit each point that the file does not have yet.

    Args:
        plan: plan of the run.
        make: returns a point with its measurement, or with its error.
        file: file to resume from and to write to.
        seed: seed that the caller gave; None if the file's may replace the plan's.
        progress: whether to show a progress bar. Default: on a terminal only.

    Raises:
        InputError: points have equal names, or as :func:`opened`.
    """
    _check_names(plan)
    path = None if file is None else Path(file)
    with opened(path, plan, seed_given=seed is not None) as journal:
        remaining = list(_remaining(journal))
        with tqdm(
            total=len(remaining),
            unit="visit",
            disable=(None if sys.stderr else True) if progress is None else not progress,
            leave=False,
        ) as bar:
            for point in remaining:
                bar.set_description_str(" ".join(point.name.split()))
                numbered: Point = dataclasses.replace(point, visit=len(journal.visits))  # type: ignore[type-var]
                journal.add(make(numbered))
                # Cached blocks of this point's sizes rarely fit the next point.
                torch.cuda.empty_cache()
                bar.update()
        return journal


def _check_names(plan: Plan[Any]) -> None:
    """Require unique names of points: labels that contain axis names could make them collide."""
    (name, count), *_ = collections.Counter(point.name for point in plan.points()).most_common(1)
    if count > 1:
        raise InputError(
            f"points must have unique names, got {count} points named {shown(name)}; give their "
            "values other labels with a mapping from labels to values"
        )


def _remaining(journal: Journal[Point]) -> Iterator[Point]:
    """Yield the remaining visits in order; nothing if all points are measured."""
    points = journal.plan.points()
    random.Random(journal.plan.seed).shuffle(points)  # noqa: S311 (no secret)
    done = {visit.key for visit in journal.visits if not (visit.control or visit.has_failed)}
    left = [point for point in points if point.key not in done]
    if not left:
        return
    control = journal.plan.control
    for place, point in enumerate(left):
        if place % _POINTS_BETWEEN_CONTROLS == 0:
            yield control
        yield point
    yield control


def told(error: BaseException) -> str:
    """Return why a point failed, in one line."""
    if isinstance(error, InputError):
        return one_line(error)
    return raised_by(error) or first_line(error)
