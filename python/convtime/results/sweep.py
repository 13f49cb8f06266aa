"""Applications measured over axes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from convtime.core import codec
from convtime.core.errors import shown
from convtime.results import forms
from convtime.results.measurement import Measurement
from convtime.results.regression import Change, compare_runs
from convtime.results.sweep_plan import SweepPlan, SweepPoint
from convtime.results.sweep_rows import COLUMNS, kernel_names, metrics, rows

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


#: By how much of its first time the control may drift before a sweep warns of it.
DRIFT_MARGIN = 0.03


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep(codec.Stored):
    """Applications measured at each combination of values of some axes; see :func:`convtime.sweep`.

    Attributes:
        plan: what was to be measured.
        points: what was, in the order of applications and axes; those that failed, too.
        controls: the visits of the control, in the order of time.

    Raises:
        ValueError: for a point that the plan does not have, or that is there more than once.
    """

    SCHEMA: ClassVar[str] = "1.0"

    plan: SweepPlan
    points: tuple[SweepPoint, ...]
    controls: tuple[SweepPoint, ...] = ()

    def __post_init__(self) -> None:
        for point in (*self.points, *self.controls):
            if not self.plan.has(point):
                raise ValueError(
                    f"{shown(point.name)} must be a point of the sweep's plan, and is none"
                )
        if len({point.key for point in self.points}) < len(self.points):
            raise ValueError("each point of a sweep must be in it once, and one is there again")

    @classmethod
    def of_visits(cls, plan: SweepPlan, visits: Iterable[SweepPoint]) -> Sweep:
        """What was visited, in any order; of a point that was visited again, the last visit."""
        visits = sorted(visits, key=lambda point: point.visit)
        last = {point.key: point for point in visits if not point.control}
        return cls(
            plan,
            tuple(last[point.key] for point in plan.points() if point.key in last),
            tuple(point for point in visits if point.control),
        )

    @property
    def measurements(self) -> dict[str, Measurement]:
        """What was measured, by the names of the points."""
        return {
            point.name: point.measurement for point in self.points if point.measurement is not None
        }

    @property
    def failed(self) -> tuple[SweepPoint, ...]:
        """The points that failed."""
        return tuple(point for point in self.points if point.error)

    @cached_property
    def missing(self) -> tuple[SweepPoint, ...]:
        """The points that have not been visited, where the sweep was interrupted."""
        visited = {point.key for point in self.points}
        return tuple(point for point in self.plan.points() if point.key not in visited)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were counted at any point; nvprof's by the names they were asked for."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(metrics, self.points))))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The short names of all kernels that were timed or counted at any point."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(kernel_names, self.points))))

    def __getitem__(self, name: str) -> SweepPoint:
        """The point of a name, such as ``"relu size=256"``."""
        for point in self.points:
            if point.name == name:
                return point
        first = self.plan.points()[0].name
        raise KeyError(f"{name!r} is no point that was visited; the first is called {first!r}")

    def drift(self, margin: float = DRIFT_MARGIN) -> Change | None:
        """How the control's time changed from its first visit to its last.

        Its ``ratio`` is of the last median to the first one, its ``verdict`` what
        :func:`convtime.compare_runs` says of it.

        Args:
            margin: share of the first time up to which the last counts as the same.

        Returns:
            None where the control was measured less than twice.
        """
        measured = [point.measurement for point in self.controls if point.measurement is not None]
        if len(measured) < 2:
            return None
        name = self.controls[0].name
        (change,) = compare_runs({name: measured[0]}, {name: measured[-1]}, margin=margin).changes
        return change

    def to_rows(self, *, kernels: bool = False) -> list[dict[str, Any]]:
        """The table, a row for each point and quantity: the time, and each metric counted.

        The columns are application, the axes, quantity, kernel, unit, count (of the samples), mean,
        min, max, median and its 95 % interval, the conditions as they were, gpu and error. Of a
        point that failed, there is one row, whose error says why.

        Args:
            kernels: whether there are also rows for each kernel of a call, by its short name: the
                times of all of its launches, and what was counted of a launch.
        """
        return [row for point in self.points for row in rows(point, kernels=kernels)]

    def to_frame(self, *, kernels: bool = False) -> pandas.DataFrame:
        """:meth:`to_rows` as a data frame.

        Raises:
            ImportError: where pandas is not installed.
        """
        return forms.frame_of(self.to_rows(kernels=kernels), self._columns)

    def to_csv(self, *, kernels: bool = False) -> str:
        """:meth:`to_rows` as CSV, each number with all of its digits."""
        return forms.csv_of(self.to_rows(kernels=kernels), self._columns)

    @property
    def _columns(self) -> list[str]:
        first, *rest = COLUMNS
        return [first, *self.plan.axes, *rest]

    def __str__(self) -> str:
        """A table of the times, and below it what is to be known beside them."""
        from convtime.show.sweep import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.sweep import line

        return f"<convtime.Sweep {line(self)}>"

    def details(self) -> str:
        """As printed, with what was counted, the control's visits, and the plan."""
        from convtime.show.sweep import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.sweep import html_sheet

        return html_sheet(self)

    def plot(
        self, x: str | None = None, quantities: Sequence[str] | None = None, kernel: str = ""
    ) -> Figure:
        """Draws each quantity over an axis: the mean, and a band from the least to the largest.

        All applications are in one panel, a colour each; there is a row of panels for each
        quantity, and a column for each combination of the other axes.

        Args:
            x: the axis; unless given, ``iterations``, or else the first of numbers, or the first.
            quantities: ``time`` and metrics that were counted; all of them unless given.
            kernel: the short name of the kernel whose launches are drawn (:attr:`kernels`); whole
                calls unless given.

        Returns:
            A figure to save or show, e.g. ``swept.plot().savefig("sweep.png")``.

        Raises:
            ValueError: for an axis, a quantity or a kernel that there is not, and where nothing was
                measured, or there is no matplotlib.
        """
        from convtime.show.plot import sweep_figure

        return sweep_figure(self, x, quantities, kernel)
