"""What a sweep is to measure, and one point of it, measured or not."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, Final

from convtime.core.errors import InputError
from convtime.results.counters import Counters
from convtime.results.measurement import Measurement

#: The axis that is neither a factory's parameter nor an option of time_op.
ITERATIONS: Final = "iterations"

#: Of a plan: all of them are held in memory, and would take days to measure.
MOST_POINTS: Final = 1_000_000

#: How a value of an axis is written down.
Label = bool | int | float | str | None


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

    Raises:
        InputError: for no point, or more than :data:`MOST_POINTS`.
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
        """Whether a point is one of the plan's."""
        return (
            point.application in self.applications
            and [*point.values] == [*self.axes]
            and all(str(value) in map(str, self.axes[axis]) for axis, value in point.values.items())
        )

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
