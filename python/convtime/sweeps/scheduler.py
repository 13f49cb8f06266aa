"""Visit the points of a plan in random order: hand them to workers, and save each when done."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from pathlib import Path
from typing import Any, Generic

from convtime.core.checks import require
from convtime.core.errors import InputError, first_line, shown
from convtime.sweeps.executing import ANSWER_SECONDS, Submit, Workers, wait_aloud, workers_of
from convtime.sweeps.journal import Journal, open_journal
from convtime.sweeps.plan import Plan, Point
from convtime.sweeps.worker import Worker
from convtime.view.progress import ProgressBar

# Points that a process has at a time: one that it measures, and one that waits for it.
_POINTS_PER_PROCESS = 2


def visit_all(
    plan_type: Callable[..., Plan[Point]],
    worker: Worker[Point],
    options: Mapping[str, Any],
    *,
    file: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    executor: Workers = None,
    **plan_fields: Any,
) -> Any:
    """Visit each point that the file does not have yet, and return the result of all.

    Args:
        plan_type: type of the plan.
        worker: measures points, in this process or in those of the executor.
        options: options that apply to all points.
        file: file to resume from and to write to.
        seed: seed of the order of the points. Default: the file's seed, or a random one.
        progress: whether to show a progress bar. Default: on a terminal only.
        executor: where the points are measured.
        plan_fields: the fields that only plans of this type have.

    Raises:
        InputError: an argument has another type, points have equal names, or as
            :func:`open_journal` and :func:`workers_of`.
        BrokenExecutor: the workers cannot go on.
    """
    is_seed = isinstance(seed, int) and not isinstance(seed, bool)
    require(seed is None or is_seed, f"seed must be an integer, got {seed!r}")
    require(
        file is None or isinstance(file, str | os.PathLike), f"file must be a path, got {file!r}"
    )
    path = None if file is None else Path(file)
    with workers_of(executor, worker) as (machine, submit):
        plan = plan_type(
            applications={name: timed.identity for name, timed in worker.applications.items()},
            axes=worker.axes.labels,
            options={
                name: value if isinstance(value, bool | int | float | str | None) else str(value)
                for name, value in options.items()
                if name not in ("stream", "log")  # which belong to the process
            },
            seed=random.SystemRandom().randrange(2**31) if seed is None else seed,
            machine=machine,
            **plan_fields,
        )
        # Labels that contain axis names could make names collide.
        names = collections.Counter(point.name for point in plan.points())
        (name, count), *_ = names.most_common(1)
        require(
            count == 1,
            f"points must have unique names, got {count} points named {shown(name)}; give their "
            "values other labels with a mapping from labels to values",
        )
        with open_journal(path, plan, seed_given=seed is not None) as journal:
            left = _remaining(journal)
            with ProgressBar(len(left), "point", shown=progress) as bar:
                try:
                    _HandOut(submit, journal, left, bar).run()
                except (BrokenExecutor, CancelledError) as error:
                    advice = f"{path} has the others, and the same call continues there"
                    if path is None:
                        advice = "give file= to keep the others"
                    raise BrokenExecutor(
                        f"executor broke before {len(_remaining(journal))} of "
                        f"{len(plan.points())} points were measured ({first_line(error)}); {advice}"
                    ) from error
            return journal.result


class _HandOut(Generic[Point]):
    """Gives points to workers one by one, and writes each when it is done.

    An executor does not tell how many processes it has, so as many points are handed out as keep
    those processes busy that have answered so far, and as many again.

    If a worker is lost, its point is tried again without the control, which tells whether the point
    or the control ends processes.
    """

    def __init__(
        self, submit: Submit, journal: Journal[Point], points: list[Point], bar: ProgressBar
    ) -> None:
        self._submit = submit
        self._journal = journal
        self._left = collections.deque(points)
        self._bar = bar
        self._control: Point | None = journal.plan.control
        self._lost: dict[str, str] = {}  # why points are tried again, by their names
        # The points that are out, and the control that was sent with them.
        self._pending: dict[Future[Any], tuple[Point, Point | None]] = {}
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
                processes = max(1, len(self._processes))
                if self._left and len(self._pending) < _POINTS_PER_PROCESS * processes:
                    self._hand_out(self._left.popleft(), is_last=len(self._left) < processes)
                    # In this process, a point is done now, and is written before the next begins.
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

    def _hand_out(self, point: Point, *, is_last: bool) -> None:
        self._bar.update(description=" ".join(point.name.split()))
        control = None if point.name in self._lost else self._control
        self._pending[self._submit(point, control, is_last=is_last)] = point, control

    def _take(self, point: Point, control: Point | None, future: Future[Any]) -> None:
        """Write the visits that a worker reports, or why it was lost."""
        plan = self._journal.plan
        error = None if _ends_run(future) else future.exception()
        if error is None:
            process, visits = future.result()
            self._processes.add(process)
            self._write(*visits)
            if self._control is not None and point.name in self._lost:
                self._write(plan.mark_failed(self._control, self._lost[point.name]))
                self._control = None
        # An executor has its own exceptions for killed workers.
        elif control is None:
            self._write(plan.mark_failed(point, first_line(error)))
        else:  # the control may be at fault, even if no others get it by now
            self._lost[point.name] = first_line(error)
            self._left.appendleft(point)
            return
        self._bar.update(advance=1)

    def _write(self, *visits: Point) -> None:
        for visit in visits:
            number = len(self._journal.visits)
            self._journal.add(dataclasses.replace(visit, visit=number))


def _ends_run(future: Future[Any]) -> bool:
    return future.cancelled() or isinstance(future.exception(), BrokenExecutor | InputError)


def _remaining(journal: Journal[Point]) -> list[Point]:
    """Return the points that are not measured yet, in the order of the seed."""
    points = journal.plan.points()
    random.Random(journal.plan.seed).shuffle(points)  # noqa: S311 (no secret)
    done = {visit.name for visit in journal.visits if not (visit.control or visit.failures)}
    return [point for point in points if point.name not in done]
