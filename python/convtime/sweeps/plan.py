"""The plan of a sweep, and one of its points, measured or not."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, Final

from convtime.core.errors import InputError
from convtime.counting.kernel_counters import Counters
from convtime.timing.measurement import Measurement

#: The axis that is neither a factory's parameter nor an option of time_op.
ITERATIONS: Final = "iterations"

#: Limit for one plan: all points are in memory, and that many would take days to measure.
MOST_POINTS: Final = 1_000_000

#: The form in which a value of an axis is stored.
Label = bool | int | float | str | None


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """The definition of a sweep: two sweeps with equal plans measure the same.

    Attributes:
        applications: description of each application, by name; all are measured at each point.
        axes: the stored values of each axis.
        options: options of ``time_op`` that are the same at all points.
        counters: metrics or groups of :func:`convtime.counters` that are also read.
        rest: seconds of idling before each point.
        seed: seed for the order of the points.
        machine: the hardware and software that it runs on.

    Raises:
        InputError: the plan has no point, or more than :data:`MOST_POINTS`.
    """

    applications: Mapping[str, str]
    axes: Mapping[str, tuple[Label, ...]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counters: tuple[str, ...] = ()
    rest: float = 0.0
    seed: int = 0
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.applications) * math.prod(map(len, self.axes.values()))
        if not 0 < count <= MOST_POINTS:
            raise InputError(
                f"applications and values of axes must give from 1 to {MOST_POINTS:,} points, got "
                + (f"{count:,}" if count < 10**18 else "more than 10^18")
            )

    def has(self, point: SweepPoint) -> bool:
        """Return whether a point belongs to the plan."""
        return (
            point.application in self.applications
            and [*point.values] == [*self.axes]
            and all(str(value) in map(str, self.axes[axis]) for axis, value in point.values.items())
        )

    def points(self) -> list[SweepPoint]:
        """Return every point, without measurements, in the order of applications and axes."""
        combinations = list(itertools.product(*self.axes.values()))
        return [
            SweepPoint(application, dict(zip(self.axes, values, strict=True)))
            for application in self.applications
            for values in combinations
        ]

    @property
    def control(self) -> SweepPoint:
        """The repeated point: the middle one of the first application."""
        count = math.prod(map(len, self.axes.values()))
        return dataclasses.replace(self.points()[count // 2], control=True)


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
        """A key that identifies the point."""
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
        """Return one line: the result, or why there is none."""
        from convtime.sweeps.show import point_line

        return point_line(self)
