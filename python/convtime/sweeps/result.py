"""Applications measured at combinations of axis values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from convtime.core import codec
from convtime.core.errors import shown
from convtime.regression.changes import Change
from convtime.sweeps.drift import DRIFT_MARGIN, Controls
from convtime.sweeps.plan import SweepPlan, SweepPoint
from convtime.sweeps.rows import COLUMNS, kernel_names, metrics, rows
from convtime.timing import forms
from convtime.timing.measurement import Measurement
from convtime.view.figure import Figure
from convtime.view.shown import Shown

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep(codec.Stored, Shown, show="convtime.sweeps.show"):
    """Applications measured at each combination of axis values; see :func:`convtime.sweep`.

    Attributes:
        plan: the plan of the sweep.
        points: visited points, in the order of applications and axes, including failed ones.
        controls: visits of the control, in order of time.

    Raises:
        ValueError: a point is not in the plan, or occurs more than once.
    """

    plan: SweepPlan
    points: tuple[SweepPoint, ...]
    controls: tuple[SweepPoint, ...] = ()

    def __post_init__(self) -> None:
        for point in (*self.points, *self.controls):
            if not self.plan.has(point):
                raise ValueError(
                    f"{shown(point.name)} must be a point of the sweep's plan, but is not in it"
                )
        if len({point.key for point in self.points}) < len(self.points):
            raise ValueError("each point must occur once in a sweep, got a point more than once")

    @classmethod
    def of_visits(cls, plan: SweepPlan, visits: Iterable[SweepPoint]) -> Sweep:
        """Build a sweep from visits in any order; the last visit of a point counts."""
        return cls(plan, *plan.latest(visits))

    @property
    def measurements(self) -> dict[str, Measurement]:
        """The measurements by the names of their points."""
        return {
            point.name: point.measurement for point in self.points if point.measurement is not None
        }

    @property
    def failed(self) -> tuple[SweepPoint, ...]:
        """The points that failed."""
        return tuple(point for point in self.points if point.error)

    @cached_property
    def missing(self) -> tuple[SweepPoint, ...]:
        """The points of an interrupted sweep that have not been visited."""
        visited = {point.key for point in self.points}
        return tuple(point for point in self.plan.points() if point.key not in visited)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were counted at any point."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(metrics, self.points))))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The short names of all kernels that were timed or counted at any point."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(kernel_names, self.points))))

    def __getitem__(self, name: str) -> SweepPoint:
        """Return the point with a name such as ``"relu size=256"``."""
        for point in self.points:
            if point.name == name:
                return point
        first = self.plan.points()[0].name
        raise KeyError(f"{name!r} is not a visited point; the first point is {first!r}")

    def drift(self, margin: float = DRIFT_MARGIN) -> Change | None:
        """Return how the control's time changed from its first visit to its last.

        Of several workers, it is the one on which the time changed most. ``ratio`` is the last
        median over the first one, and ``verdict`` is the verdict of :func:`convtime.compare_runs`.

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
        """The visits of the control, by worker."""
        return Controls.of(
            self.plan.control.name,
            ((point.worker, point.measurement, point.error) for point in self.controls),
        )

    def to_rows(self, *, kernels: bool = False) -> list[dict[str, Any]]:
        """Return the table, with a row for each point and quantity (the time and each metric).

        The columns are application, the axes, quantity, kernel, unit, count (of the samples), mean,
        min, max, median and its 95 % interval, the actual conditions, gpu, worker, control_ratio
        (with several workers: the control's time on this one over that on a typical one) and error.
        A point that failed has one row, whose error says why.

        Args:
            kernels: whether to add rows for each kernel of a call, by its short name: the times of
                all of its launches, and its metrics per launch.
        """
        ratios = self.controlled.ratios()
        return [row for point in self.points for row in rows(point, ratios, kernels=kernels)]

    def to_frame(self, *, kernels: bool = False) -> pandas.DataFrame:
        """Return :meth:`to_rows` as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        return forms.frame_of(self.to_rows(kernels=kernels), self._columns)

    def to_csv(self, *, kernels: bool = False) -> str:
        """Return :meth:`to_rows` as CSV, without rounding numbers."""
        return forms.csv_of(self.to_rows(kernels=kernels), self._columns)

    @property
    def _columns(self) -> list[str]:
        first, *rest = COLUMNS
        return [first, *self.plan.axes, *rest]

    def plot(
        self, x: str | None = None, quantities: Sequence[str] | None = None, kernel: str = ""
    ) -> Figure:
        """Plot each quantity over an axis: medians, and a band for their uncertainty or range.

        The band of a call's time is the 95 % interval of the median. Those of counted metrics and
        of one kernel's launches are from the minimum to the maximum. All applications share a
        panel, in different colors. There is a row of panels for each quantity, and a column for
        each combination of the other axes.

        Args:
            x: the axis. Default: ``iterations``, or else the first numeric axis, or the first axis.
            quantities: ``time`` and counted metrics. Default: all of these.
            kernel: short name of the kernel whose launches are plotted (:attr:`kernels`). Default:
                whole calls.

        Returns:
            A figure to save or show, e.g. ``swept.plot().save("sweep.png")``.

        Raises:
            ValueError: the axis, a quantity or the kernel is unknown, nothing was measured.
        """
        figure: Figure = self._drawing().plot(self, x, quantities, kernel)
        return figure
