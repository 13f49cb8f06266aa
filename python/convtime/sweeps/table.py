"""The results of runs over axes: points of a plan, and visits of its control in between."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import shown
from convtime.regression.changes import Change
from convtime.regression.compare_runs import compare_runs
from convtime.sweeps.plan import Plan, Point
from convtime.timing import forms
from convtime.timing.measurement import Measurement
from convtime.view.shown import Shown

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self


Item = TypeVar("Item")
#: Relative difference of the control's times above which a run warns.
DRIFT_MARGIN = 0.03


@dataclasses.dataclass(frozen=True, repr=False)
class PointTable(codec.Stored, Shown, Generic[Point]):
    """Points of a plan, measured in random order with visits of a control in between.

    Attributes:
        plan: the plan.
        points: visited points, in the order of the plan, including failed ones.
        controls: visits of the control, in order of time.

    Raises:
        ValueError: a point is not in the plan, or occurs more than once.
    """

    plan: Plan[Point]
    points: tuple[Point, ...]
    controls: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        for point in (*self.points, *self.controls):
            require(
                self.plan.has(point),
                f"{shown(point.name)} must be a point of the table's plan, but is not in it",
            )
        require(
            len(self._by_name) == len(self.points),
            "each point must occur once in a table, got a point more than once",
        )

    @classmethod
    def of_visits(cls, plan: Plan[Point], visits: Iterable[Point]) -> Self:
        """Return the result of visits in any order; the last visit of a point counts."""
        ordered = sorted(visits, key=lambda point: point.visit)
        last = {point.name: point for point in ordered if not point.control}
        return cls(
            plan,
            tuple(last[point.name] for point in plan.points() if point.name in last),
            tuple(point for point in ordered if point.control),
        )

    @cached_property
    def _by_name(self) -> dict[str, Point]:
        return {point.name: point for point in self.points}

    @property
    def measurements(self) -> dict[str, Measurement]:
        """The measurements by application and point, e.g. ``"relu batch=8"``."""
        return {
            f"{name} {point.position}": point.measurements[name]
            for point in self.points
            for name in self.timed_at(point)
        }

    def timed_at(self, point: Point) -> tuple[str, ...]:
        """Return the applications that were timed at a point, in the order of the plan."""
        return tuple(name for name in self.plan.applications if name in point.measurements)

    @property
    def failed(self) -> tuple[Point, ...]:
        """The points at which an application failed."""
        return tuple(point for point in self.points if point.failures)

    @cached_property
    def missing(self) -> tuple[Point, ...]:
        """The points of an interrupted run that have not been visited."""
        return tuple(point for point in self.plan.points() if point.name not in self._by_name)

    def __getitem__(self, name: str) -> Point:
        """Return the point with a name; names in a sweep begin with the application."""
        if name in self._by_name:
            return self._by_name[name]
        first = self.plan.points()[0].name
        raise KeyError(f"{name!r} is not a visited point; the first point is {first!r}")

    @property
    def control(self) -> str:
        """The name of the application and the point whose times show drift."""
        return f"{self.plan.control_application} {self.plan.control.position}"

    @cached_property
    def control_times(self) -> dict[str, list[Measurement]]:
        """The control's measurements in order of time, by worker."""
        by_worker: dict[str, list[Measurement]] = {}
        name = self.plan.control_application
        for point in self.controls:
            if name in point.measurements:
                by_worker.setdefault(point.worker, []).append(point.measurements[name])
        return by_worker

    def drift(self, margin: float = DRIFT_MARGIN) -> Change | None:
        """Return how the control's time changed from its first visit to its last.

        In a comparison, it is the baseline's time at the control. Of several workers, it is the one
        on which the time changed most. ``ratio`` is the last median over the first one, and
        ``verdict`` is the verdict of :func:`convtime.compare_runs`.

        Args:
            margin: relative difference that counts as equal.

        Returns:
            The change; None if no worker measured the control twice.
        """
        is_alone = len(self.control_times) < 2
        changes = [
            _change(
                self.control if is_alone else f"{self.control} on worker {worker}",
                visits[0],
                visits[-1],
                margin,
            )
            for worker, visits in self.control_times.items()
            if len(visits) > 1
        ]
        return max(changes, key=_size, default=None)

    def workers(self, margin: float = DRIFT_MARGIN) -> dict[str, Change]:
        """Return how the control's time on each of several workers differs from a typical one's.

        The typical worker is the one with the median time; of an even number, the shorter of both.
        A worker's time is the median one of its visits. ``ratio`` is a worker's time over that of
        the typical one, and ``verdict`` is as for :meth:`drift`.

        Args:
            margin: relative difference that counts as equal.

        Returns:
            The changes by worker; empty if one worker measured all points.
        """
        medians = self._median_visits
        return {
            worker: _change(worker, medians[self.typical_worker], measured, margin)
            for worker, measured in medians.items()
            if worker != self.typical_worker
        }

    @cached_property
    def _median_visits(self) -> dict[str, Measurement]:
        return {
            worker: _median_low(visits, key=lambda measured: measured.median)
            for worker, visits in self.control_times.items()
        }

    @property
    def typical_worker(self) -> str:
        """The worker that others are compared with; empty if the control was not measured."""
        medians = self._median_visits
        return _median_low(medians, key=lambda name: medians[name].median) if medians else ""

    def worker_ratios(self) -> dict[str, float | None]:
        """Return the control's time on each of several workers over that on the typical worker."""
        ratios = {
            worker: None if change.ratio is None else change.ratio.value
            for worker, change in self.workers().items()
        }
        return {self.typical_worker: 1.0, **ratios} if ratios else {}

    def to_rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    @property
    def _columns(self) -> list[str]:
        raise NotImplementedError

    def to_frame(self, **options: Any) -> pandas.DataFrame:
        """Return :meth:`to_rows`, which takes the same arguments, as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        return forms.frame_of(self.to_rows(**options), self._columns)

    def to_csv(self, **options: Any) -> str:
        """Return :meth:`to_rows`, which takes the same arguments, as CSV without rounding."""
        return forms.csv_of(self.to_rows(**options), self._columns)


def _change(name: str, before: Measurement, after: Measurement, margin: float) -> Change:
    (change,) = compare_runs({name: before}, {name: after}, margin=margin).changes
    return change


def _size(change: Change) -> float:
    return -1.0 if change.ratio is None else abs(math.log(change.ratio.value))


def _median_low(items: Iterable[Item], key: Callable[[Item], float]) -> Item:
    ordered = sorted(items, key=key)
    return ordered[(len(ordered) - 1) // 2]
