"""The plan of a comparison over axes, and one of its points, measured or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from convtime.sweeps.plan import Label, Plan, position_of
from convtime.timing.comparison import Agreement, Comparison


@dataclasses.dataclass(frozen=True)
class ComparisonPoint:
    """All candidates at one value of each axis, timed interleaved.

    Attributes:
        values: the stored value of each axis.
        control: whether this is a visit of the point that is repeated through the run.
        visit: number of earlier visits.
        comparison: times of the candidates that did not fail; None if all failed, or if the point
            has not been visited. Its baseline is the candidate that was fastest in isolation.
        errors: why the others failed, by name.
        same_results: whether each candidate's result agrees with that of the table's baseline.
        worker: GPU, or host and CPUs, that measured it; empty if no worker answered.
    """

    values: Mapping[str, Label]
    control: bool = False
    visit: int = 0
    comparison: Comparison | None = None
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    same_results: Mapping[str, Agreement] = dataclasses.field(default_factory=dict)
    worker: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """A key that identifies the point."""
        return (self.name,)

    @property
    def name(self) -> str:
        """The values of the axes in words."""
        return position_of(self.values)

    @property
    def has_failed(self) -> bool:
        """Whether a candidate failed."""
        return bool(self.errors)

    def __str__(self) -> str:
        """Return the comparison, or why there is none."""
        if self.comparison is not None:
            return str(self.comparison)
        told = "; ".join(f"{name}: {error}" for name, error in self.errors.items())
        return f"{self.name}: {told or 'not measured'}"


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
        """Return every point, without measurements, in the order of the axes."""
        return [ComparisonPoint(values) for values in self.combinations()]

    def failed(self, point: ComparisonPoint, error: str) -> ComparisonPoint:
        """Return a point at which no candidate could be timed, with the reason."""
        return dataclasses.replace(point, errors=dict.fromkeys(self.applications, error))
