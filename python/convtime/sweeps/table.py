"""The results of runs over axes: points of a plan, and visits of its control in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic

from convtime.core import codec
from convtime.core.errors import shown
from convtime.sweeps.drift import DRIFT_MARGIN, Controls
from convtime.sweeps.plan import Plan, Point
from convtime.timing import forms
from convtime.timing.measurement import Measurement
from convtime.view.shown import Shown

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self

    from convtime.regression.changes import Change


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
            if not self.plan.has(point):
                raise ValueError(
                    f"{shown(point.name)} must be a point of the table's plan, but is not in it"
                )
        if len(self._by_name) < len(self.points):
            raise ValueError("each point must occur once in a table, got a point more than once")

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
        return self.controlled.drift(margin)

    def workers(self, margin: float = DRIFT_MARGIN) -> dict[str, Change]:
        """Return how the control's time on each of several workers differs from a typical one's.

        The typical worker is the one with the median time. ``ratio`` is a worker's time over that
        of the typical one, and ``verdict`` is as for :meth:`drift`.

        Args:
            margin: relative difference that counts as equal.

        Returns:
            The changes by worker; empty if one worker measured all points.
        """
        return self.controlled.workers(margin)

    @cached_property
    def controlled(self) -> Controls:
        """The times that show drift, by worker."""
        name = self.plan.controlled
        by_worker: dict[str, list[Measurement]] = {}
        for point in self.controls:
            if name in point.measurements:
                by_worker.setdefault(point.worker, []).append(point.measurements[name])
        errors = (error for point in self.controls for error in point.failures.values())
        return Controls(f"{name} {self.plan.control.position}", by_worker, next(errors, ""))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the table as rows."""
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
