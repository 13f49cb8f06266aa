"""The plans of sweeps and of comparisons over axes, and their points, measured or not."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import numpy as np

from convtime.core.checks import require
from convtime.counting.results import Counters
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.measurement import Measurement
from convtime.view.wording import printable

#: The axis that is neither a factory's parameter nor an option of time_op.
ITERATIONS: Final = "iterations"

#: Limit for one plan: all points are in memory, and that many would take days to measure.
MOST_POINTS: Final = 1_000_000

# The ratio of two values of an axis from which their geometric mean is their middle.
_GEOMETRIC_PAIR = 4

#: The form in which a value of an axis is stored.
Label = bool | int | float | str | None


@dataclasses.dataclass(frozen=True)
class Visit:
    """A point of a plan, visited or not.

    Attributes:
        values: the stored value of each axis.
        control: whether this is a visit of the point that is repeated through the run.
        visit: number of earlier visits.
        worker: GPU, or host and CPUs, that measured it; empty if no worker answered.
    """

    values: Mapping[str, Label]
    control: bool = False
    visit: int = 0
    worker: str = ""

    @property
    def position(self) -> str:
        """The values of the axes in words."""
        return " ".join(f"{axis}={value}" for axis, value in self.values.items())

    @property
    def name(self) -> str:
        """The name of the point, which is unique in its plan."""
        return self.position


@dataclasses.dataclass(frozen=True)
class SweepPoint(Visit):
    """One application at one value of each axis.

    Attributes:
        values: the stored value of each axis.
        control: whether this is a visit of the point that is repeated through the sweep.
        visit: number of earlier visits.
        worker: GPU, or host and CPUs, that measured it; empty if no worker answered.
        application: name of the application.
        measurement: its times; None if it failed or has not been measured.
        error: why it failed; empty if it did not.
        counters: its counters, if they were requested and could be read.
        counters_reason: why requested counters could not be read; empty otherwise.
    """

    application: str = dataclasses.field(kw_only=True)
    measurement: Measurement | None = None
    error: str = ""
    counters: Counters | None = None
    counters_reason: str = ""

    @property
    def name(self) -> str:
        """The application and the values of the axes."""
        return f"{self.application} {self.position}"

    @property
    def measurements(self) -> Mapping[str, Measurement]:
        """The measurement by its application, if there is one."""
        return {} if self.measurement is None else {self.application: self.measurement}

    @property
    def failures(self) -> Mapping[str, str]:
        """The error by its application, if it failed."""
        return {self.application: self.error} if self.error else {}

    def __str__(self) -> str:
        """Return one line: the result, or why there is none."""
        if self.measurement is None:
            return printable(f"{self.name}: {self.error or 'not measured'}")
        return str(self.measurement)


@dataclasses.dataclass(frozen=True)
class ComparisonPoint(Visit):
    """All candidates at one value of each axis, timed interleaved.

    Attributes:
        values: the stored value of each axis.
        control: whether this is a visit of the point that is repeated through the run.
        visit: number of earlier visits.
        worker: GPU, or host and CPUs, that measured it; empty if no worker answered.
        comparison: times of the candidates that did not fail; None if all failed, or if the point
            has not been visited. Its baseline is the candidate that was fastest in isolation.
        errors: why the others failed, by name.
        same_results: whether each candidate's result agrees with that of the table's baseline.
    """

    comparison: Comparison | None = None
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    same_results: Mapping[str, Agreement] = dataclasses.field(default_factory=dict)

    @property
    def measurements(self) -> Mapping[str, Measurement]:
        """The measurements by candidate, with that of a duplicate of the baseline if any."""
        return {} if self.comparison is None else self.comparison.measurements

    @property
    def failures(self) -> Mapping[str, str]:
        """Why candidates failed, by name."""
        return self.errors

    def __str__(self) -> str:
        """Return the comparison, or why there is none."""
        if self.comparison is not None:
            return str(self.comparison)
        errors = "; ".join(f"{name}: {error}" for name, error in self.errors.items())
        return f"{self.name}: {errors or 'not measured'}"


Point = TypeVar("Point", bound=SweepPoint | ComparisonPoint)


@dataclasses.dataclass(frozen=True)
class Plan(Generic[Point]):
    """The definition of a run over axes: two runs with equal plans measure the same.

    Attributes:
        applications: description of each application, by name; all are measured at each point.
        axes: the stored values of each axis.
        options: options that are the same at all points.
        seed: seed for the order of the points.
        machine: the hardware and software that it runs on.

    Raises:
        InputError: the plan has no point, or more than :data:`MOST_POINTS`.
    """

    applications: Mapping[str, str]
    axes: Mapping[str, tuple[Label, ...]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.applications) * math.prod(map(len, self.axes.values()))
        require(
            0 < count <= MOST_POINTS,
            f"applications and values of axes must give from 1 to {MOST_POINTS:,} points, got "
            + (f"{count:,}" if count < 10**18 else "more than 10^18"),
        )

    def has(self, point: Point) -> bool:
        return [*point.values] == [*self.axes] and all(
            str(value) in map(str, self.axes[axis]) for axis, value in point.values.items()
        )

    def combinations(self) -> Iterator[dict[str, Label]]:
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def points(self) -> list[Point]:
        """Return every point, without measurements, in the order of applications and axes."""
        raise NotImplementedError

    def mark_failed(self, point: Point, error: str) -> Point:
        """Return a point that could not be measured, with the reason."""
        raise NotImplementedError

    @property
    def control_application(self) -> str:
        """The application whose times at the control show drift: that of :attr:`control`."""
        return next(iter(self.applications))

    @cached_property
    def control(self) -> Point:
        """The repeated point: the one in the middle of the axes."""
        count = math.prod(map(len, self.axes.values()))
        control: Point = dataclasses.replace(self.points()[count // 2], control=True)
        return control


@dataclasses.dataclass(frozen=True)
class SweepPlan(Plan[SweepPoint]):
    """The definition of a sweep: two sweeps with equal plans measure the same.

    Attributes:
        applications: description of each application, by name; all are measured at each point.
        axes: the stored values of each axis.
        options: options of ``time_op`` that are the same at all points.
        seed: seed for the order of the points.
        machine: the hardware and software that it runs on.
        counters: metrics or groups of :func:`convtime.counters` that are also read.
        rest: seconds of idling before each point.
    """

    counters: tuple[str, ...] = ()
    rest: float = 0.0

    def has(self, point: SweepPoint) -> bool:
        return point.application in self.applications and super().has(point)

    def points(self) -> list[SweepPoint]:
        return [
            SweepPoint(values, application=application)
            for application, values in itertools.product(self.applications, self.combinations())
        ]

    def mark_failed(self, point: SweepPoint, error: str) -> SweepPoint:
        return dataclasses.replace(point, error=error)


@dataclasses.dataclass(frozen=True)
class ComparisonPlan(Plan[ComparisonPoint]):
    """The definition of a comparison over axes: two with equal plans measure the same.

    Attributes:
        applications: description of each candidate, by name; all are timed at each point.
        axes: the stored values of each axis.
        options: options of ``compare`` that are the same at all points.
        seed: seed for the order of the points.
        machine: the hardware and software that it runs on.
        baseline: name of the candidate that ratios and results refer to.
        margin: relative difference that counts as equal.
    """

    baseline: str = ""
    margin: float = 0.01

    def points(self) -> list[ComparisonPoint]:
        return [ComparisonPoint(values) for values in self.combinations()]

    def mark_failed(self, point: ComparisonPoint, error: str) -> ComparisonPoint:
        return dataclasses.replace(point, errors=dict.fromkeys(self.applications, error))

    @property
    def control_application(self) -> str:
        return self.baseline


def main_axis(axes: Mapping[str, Sequence[Label]]) -> str:
    """Return ``iterations`` if present, else the first numeric axis, else the first axis."""
    if ITERATIONS in axes:
        return ITERATIONS
    of_numbers = (axis for axis, values in axes.items() if len(values) > 1 and numbers_of(values))
    return next(of_numbers, next(iter(axes)))


def numbers_of(values: Sequence[Label]) -> list[float]:
    """Return an axis's values if all are numbers; otherwise an empty list."""
    numbers = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return numbers if len(numbers) == len(values) else []


def others_than(x: str, values: Mapping[str, Label], axes: Mapping[str, Sequence[Label]]) -> str:
    """Return the values of the other axes that have several, in words."""
    others = [axis for axis, labels in axes.items() if axis != x and len(labels) > 1]
    return ", ".join(f"{axis}={values[axis]}" for axis in others)


def is_geometric(values: Sequence[float]) -> bool:
    """Return whether values are spaced more evenly on a logarithmic scale than on a linear one."""
    ordered = np.sort([*values])
    if len(ordered) < 2 or ordered[0] <= 0:
        return False
    if len(ordered) == 2:
        return bool(ordered[1] >= _GEOMETRIC_PAIR * ordered[0])
    gaps, gaps_of_logarithms = np.diff(ordered), np.diff(np.log(ordered))
    unevenness = gaps_of_logarithms.max() / gaps_of_logarithms.mean()
    return bool(unevenness < gaps.max() / gaps.mean())
