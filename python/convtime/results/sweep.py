"""Measurements over axes: what was to be measured, each point of it, and the table of them all."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from convtime.core import codec
from convtime.results import forms
from convtime.results.counters import Counters
from convtime.results.measurement import Measurement
from convtime.results.regression import Change, compare_runs

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

SCHEMA = "1.0"

#: The name of what is measured at every point, beside counters.
TIME = "time"

#: The axis that is neither a factory's parameter nor an option of time_op.
ITERATIONS = "iterations"

#: How a value of an axis is written down.
Label = bool | int | float | str | None

#: By how much of its first time the control may drift before a sweep warns of it.
DRIFT_MARGIN = 0.03

_CONDITIONS = ("method", "queue", "cache", "placement", "regime", "device")
_STATISTICS = ("count", "mean", "min", "max", "median", "median_low", "median_high")

#: Columns of the table beside the axes, which may not have these names.
COLUMNS = (
    "application",
    "quantity",
    "kernel",
    "unit",
    *_STATISTICS,
    *(f"{condition}_used" for condition in _CONDITIONS),
    "gpu",
    "error",
)


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """What a sweep is of: two with the same plan measure the same.

    Attributes:
        applications: what is measured at each point, by name, with what it is in words.
        axes: the values of each axis, as they are written down.
        options: of ``time_op``, those that are the same at all points.
        counters: the metrics or groups of :func:`convtime.counters` that are read, too.
        rest: seconds of idling before each point.
        seed: of the order of the points.
        machine: the hardware and software that it runs on.
    """

    applications: Mapping[str, str]
    axes: Mapping[str, tuple[Label, ...]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counters: tuple[str, ...] = ()
    rest: float = 0.0
    seed: int = 0
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def points(self) -> list[SweepPoint]:
        """Every point, not measured yet, in the order of applications and axes."""
        combinations = list(itertools.product(*self.axes.values()))
        return [
            SweepPoint(application, dict(zip(self.axes, values, strict=True)))
            for application in self.applications
            for values in combinations
        ]

    @property
    def control(self) -> SweepPoint:
        """The point that is repeated: of the first application, the one in the middle."""
        count = math.prod(map(len, self.axes.values()))
        return dataclasses.replace(self.points()[count // 2], control=True)


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One application at one value of each axis.

    Attributes:
        application: its name.
        values: of each axis, as it is written down.
        control: whether this is a visit of the point that is repeated through the sweep.
        visit: how many visits came before this one.
        measurement: its times; None where it failed, or has not been measured.
        error: why it failed; empty where it did not.
        counters: what was counted, where counters were asked for and could be read.
        counters_reason: why they could not.
    """

    application: str
    values: Mapping[str, Label]
    control: bool = False
    visit: int = 0
    measurement: Measurement | None = None
    error: str = ""
    counters: Counters | None = None
    counters_reason: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from other points."""
        return self.application, self.position

    @property
    def position(self) -> str:
        """The values of the axes in words."""
        return " ".join(f"{axis}={value}" for axis, value in self.values.items())

    @property
    def name(self) -> str:
        """The application and the values of the axes."""
        return f"{self.application} {self.position}"

    def __str__(self) -> str:
        """One line: what was measured, or why not."""
        from convtime.show.sweep import point_line

        return point_line(self)


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep:
    """Applications measured at each combination of values of some axes; see :func:`convtime.sweep`.

    Attributes:
        plan: what was to be measured.
        points: what was, in the order of applications and axes; those that failed, too.
        controls: the visits of the control, in the order of time.
    """

    plan: SweepPlan
    points: tuple[SweepPoint, ...]
    controls: tuple[SweepPoint, ...] = ()

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
        counted = [_metrics(point.counters) for point in self.points if point.counters is not None]
        return tuple(dict.fromkeys(itertools.chain.from_iterable(counted)))

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
            kernels: whether there are also rows for each kernel of a call, under its name. What was
                counted of a kernel is a median; there are no mean, min and max of it.
        """
        return [row for point in self.points for row in _rows(point, kernels=kernels)]

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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with a schema version."""
        return codec.encode(self, SCHEMA)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sweep:
        """Reverses :meth:`to_dict`, also after JSON has made lists of the tuples.

        Raises:
            ValueError: for another major schema version, and for fields that are missing or of
                another type.
        """
        return codec.decode(cls, data, SCHEMA)

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

    def plot(self, x: str | None = None, quantities: Sequence[str] | None = None) -> Figure:
        """Draws each quantity over an axis: the mean, and a band from the least to the largest.

        All applications are in one panel, a colour each; there is a row of panels for each
        quantity, and a column for each combination of the other axes.

        Args:
            x: the axis; unless given, ``iterations``, or else the first of numbers, or the first.
            quantities: ``time`` and metrics that were counted; all of them unless given.

        Returns:
            A figure to save or show, e.g. ``swept.plot().savefig("sweep.png")``.

        Raises:
            ValueError: for an axis or a quantity that there is not, and where nothing was measured,
                or there is no matplotlib.
        """
        from convtime.show.plot import sweep_figure

        return sweep_figure(self, x, quantities)


def _rows(point: SweepPoint, *, kernels: bool) -> Iterator[dict[str, Any]]:
    measured = point.measurement
    same: dict[str, Any] = {"application": point.application, **point.values}
    if measured is None:
        yield {**same, "error": point.error}
        return
    used = {f"{condition}_used": getattr(measured, condition) for condition in _CONDITIONS}
    used["gpu"] = measured.provenance.get("gpu")
    yield {**same, "quantity": TIME, "unit": "s", **time_statistics(measured), **used}
    if kernels:
        for activity in measured.activities:
            known = [second for second in activity.seconds if second is not None]
            if known:
                told = {"quantity": TIME, "kernel": activity.short_name, "unit": "s"}
                yield {**same, **told, **_statistics(known), **used}
    counted = point.counters
    if counted is None:
        return
    for metric in _metrics(counted):
        told = {"quantity": metric, "unit": counter_unit(counted, metric)}
        yield {**same, **told, **counter_statistics(counted, metric), **used}
    if kernels:
        for kernel in counted.kernels:
            for metric, value in kernel.values.items():
                told = {"quantity": metric, "kernel": kernel.short_name}
                told["unit"] = counted.units.get(metric, "")
                yield {**same, **told, "median": value, **used}


def time_statistics(measured: Measurement) -> dict[str, Any]:
    """Of the samples; without an interval where there are too few for one."""
    low, high = measured.median_interval
    interval = (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
    values = (
        len(measured.seconds), measured.mean, measured.min, measured.max, measured.median, *interval
    )  # fmt: skip
    return dict(zip(_STATISTICS, values, strict=True))


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    """Of values of which there are too few, or too little is known, for an interval."""
    mean, median = statistics.fmean(values), statistics.median(values)
    found = (len(values), mean, min(values), max(values), median)
    return dict(zip(_STATISTICS, found, strict=False))


def _metrics(counted: Counters) -> list[str]:
    """What was counted: nvprof's names that were asked for stand in place of what they are of."""
    terms = set().union(*counted.translated.values())
    return [*counted.translated, *(metric for metric in counted.samples if metric not in terms)]


def counter_unit(counted: Counters, metric: str) -> str:
    """The unit of a metric; of one of nvprof's, that of what it is of."""
    first = next(iter(counted.translated.get(metric, (metric,))))
    return counted.units.get(first, "")


def counter_statistics(counted: Counters, metric: str) -> dict[str, Any]:
    """Of what was counted of a metric; empty where the hardware had no value."""
    terms = counted.translated.get(metric, {metric: 1.0})
    repeats = zip(*(counted.samples.get(term, ()) for term in terms), strict=True)
    known = [
        math.fsum(weight * value for weight, value in zip(terms.values(), values, strict=True))
        for values in repeats
        if None not in values
    ]
    return _statistics(known) if known else {}
