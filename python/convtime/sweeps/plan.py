"""The plan of a sweep, and one of its points, measured or not; and the parts of every plan."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from convtime.core.errors import InputError
from convtime.counting.kernel_counters import Counters
from convtime.timing.measurement import Measurement
from convtime.view.wording import printable

#: The axis that is neither a factory's parameter nor an option of time_op.
ITERATIONS: Final = "iterations"

#: Limit for one plan: all points are in memory, and that many would take days to measure.
MOST_POINTS: Final = 1_000_000

#: The form in which a value of an axis is stored.
Label = bool | int | float | str | None


class Visit(Protocol):
    """A point of a plan, visited or not."""

    @property
    def values(self) -> Mapping[str, Label]:
        """The stored value of each axis."""

    @property
    def control(self) -> bool:
        """Whether this is a visit of the point that is repeated."""

    @property
    def visit(self) -> int:
        """Number of earlier visits."""

    @property
    def worker(self) -> str:
        """The worker that measured it."""

    @property
    def key(self) -> tuple[str, ...]:
        """A key that identifies the point."""

    @property
    def name(self) -> str:
        """The point in words."""

    @property
    def has_failed(self) -> bool:
        """Whether something was not measured."""


Point = TypeVar("Point", bound=Visit)


def position_of(values: Mapping[str, Label]) -> str:
    """Return the values of axes in words."""
    return " ".join(f"{axis}={value}" for axis, value in values.items())


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
        if not 0 < count <= MOST_POINTS:
            raise InputError(
                f"applications and values of axes must give from 1 to {MOST_POINTS:,} points, got "
                + (f"{count:,}" if count < 10**18 else "more than 10^18")
            )

    def has(self, point: Point) -> bool:
        """Return whether a point belongs to the plan."""
        return [*point.values] == [*self.axes] and all(
            str(value) in map(str, self.axes[axis]) for axis, value in point.values.items()
        )

    def combinations(self) -> Iterator[dict[str, Label]]:
        """Yield the values of the axes at each position."""
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def points(self) -> list[Point]:
        """Return every point, without measurements, in the order of applications and axes."""
        raise NotImplementedError

    def failed(self, point: Point, error: str) -> Point:
        """Return a point that could not be measured, with the reason."""
        raise NotImplementedError

    def latest(self, visits: Iterable[Point]) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
        """Return the points, in the order of the plan, and the visits of the control.

        Args:
            visits: visits in any order; the last visit of a point counts.
        """
        ordered = sorted(visits, key=lambda point: point.visit)
        last = {point.key: point for point in ordered if not point.control}
        return (
            tuple(last[point.key] for point in self.points() if point.key in last),
            tuple(point for point in ordered if point.control),
        )

    @property
    def control(self) -> Point:
        """The repeated point: the one in the middle of the axes."""
        count = math.prod(map(len, self.axes.values()))
        control: Point = dataclasses.replace(self.points()[count // 2], control=True)  # type: ignore[type-var]
        return control


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One application at one value of each axis.

    Attributes:
        application: name of the application.
        values: the stored value of each axis.
        control: whether this is a visit of the point that is repeated through the sweep.
        visit: number of earlier visits.
        measurement: its times; None if it failed or has not been measured.
        error: why it failed; empty if it did not.
        counters: its counters, if they were requested and could be read.
        counters_reason: why requested counters could not be read; empty otherwise.
        worker: GPU, or host and CPUs, that measured it; empty if no worker answered.
    """

    application: str
    values: Mapping[str, Label]
    control: bool = False
    visit: int = 0
    measurement: Measurement | None = None
    error: str = ""
    counters: Counters | None = None
    counters_reason: str = ""
    worker: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """A key that identifies the point."""
        return self.application, self.position

    @property
    def position(self) -> str:
        """The values of the axes in words."""
        return position_of(self.values)

    @property
    def name(self) -> str:
        """The application and the values of the axes."""
        return f"{self.application} {self.position}"

    @property
    def has_failed(self) -> bool:
        """Whether it could not be measured."""
        return bool(self.error)

    def __str__(self) -> str:
        """Return one line: the result, or why there is none."""
        if self.measurement is None:
            return printable(f"{self.name}: {self.error or 'not measured'}")
        return str(self.measurement)


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
        """Return whether a point belongs to the plan."""
        return point.application in self.applications and super().has(point)

    def points(self) -> list[SweepPoint]:
        """Return every point, without measurements, in the order of applications and axes."""
        combinations = list(self.combinations())
        return [
            SweepPoint(application, values)
            for application in self.applications
            for values in combinations
        ]

    def failed(self, point: SweepPoint, error: str) -> SweepPoint:
        """Return a point that could not be measured, with the reason."""
        return dataclasses.replace(point, error=error)


def main_axis(axes: Mapping[str, Sequence[Label]]) -> str:
    """Return ``iterations`` if present, else the first numeric axis, else the first axis."""
    if ITERATIONS in axes:
        return ITERATIONS
    of_numbers = (axis for axis, values in axes.items() if len(values) > 1 and numbers_of(values))
    return next(of_numbers, next(iter(axes)))


def numbers_of(values: Sequence[Label]) -> list[float]:
    """Return an axis's values if all are numbers; otherwise an empty list."""
    found = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return found if len(found) == len(values) else []


def others_than(x: str, values: Mapping[str, Label], axes: Mapping[str, Sequence[Label]]) -> str:
    """Return the values of the other axes that have several, in words."""
    others = [axis for axis, labels in axes.items() if axis != x and len(labels) > 1]
    return ", ".join(f"{axis}={values[axis]}" for axis in others)
