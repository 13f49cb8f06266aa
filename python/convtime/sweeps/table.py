"""Candidates compared at combinations of axis values: who is fastest, and where."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from convtime.core import codec
from convtime.core.errors import shown
from convtime.regression.significance import geomean
from convtime.sweeps.comparison_plan import ComparisonPlan, ComparisonPoint
from convtime.sweeps.crossovers import (
    Crossover,
    PairPoint,
    crossings,
    is_geometric,
)
from convtime.sweeps.drift import DRIFT_MARGIN, Controls
from convtime.sweeps.outcomes import Outcome, Row, logarithm, rows_of
from convtime.sweeps.plan import main_axis, numbers_of, others_than
from convtime.sweeps.table_rows import columns_of, rows_at
from convtime.sweeps.words import listed, verdict_along
from convtime.timing import forms
from convtime.timing.comparison import FINDS, findings_of
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import (
    Failure,
    Finding,
    Judgement,
    Ratio,
    check_failures,
    exit_code_of,
)
from convtime.view.figure import Figure
from convtime.view.shown import Shown

if TYPE_CHECKING:
    import pandas

    from convtime.regression.changes import Change


@dataclasses.dataclass(frozen=True, repr=False)
class ComparisonTable(codec.Stored, Shown, show="convtime.sweeps.show_table"):
    """Candidates compared at each combination of axis values; see :func:`convtime.compare`.

    Attributes:
        plan: the plan of the comparison.
        points: visited points, in the order of the axes, including failed ones.
        controls: visits of the control, in order of time.

    Raises:
        ValueError: a point is not in the plan or occurs more than once, has another candidate or
            margin than the plan, or was measured on another GPU than the others.
    """

    plan: ComparisonPlan
    points: tuple[ComparisonPoint, ...]
    controls: tuple[ComparisonPoint, ...] = ()

    def __post_init__(self) -> None:
        if self.plan.baseline not in self.plan.applications:
            raise ValueError(
                f"baseline must be one of {list(self.plan.applications)}, got "
                f"{shown(self.plan.baseline)}"
            )
        for point in (*self.points, *self.controls):
            self._check(point)
        if len({point.key for point in self.points}) < len(self.points):
            raise ValueError("each point must occur once in a table, got a point more than once")
        gpus: dict[str, str] = {}
        for name, measured in self.measurements.items():
            gpus.setdefault(str(measured.provenance.get("gpu")), name)
        if len(gpus) > 1:
            (one, first), (other, second), *_ = gpus.items()
            raise ValueError(
                f"all points of a table must be measured on one GPU, got {shown(first)} on {one} "
                f"and {shown(second)} on {other}"
            )

    def _check(self, point: ComparisonPoint) -> None:
        if not self.plan.has(point):
            raise ValueError(
                f"{shown(point.name)} must be a point of the table's plan, but is not in it"
            )
        compared = point.comparison
        timed = () if compared is None else compared.measurements
        control = "" if compared is None else compared.control
        for name in (*timed, *point.errors, *point.same_results):
            if name not in self.plan.applications and name != control:
                raise ValueError(
                    f"candidates at {shown(point.name)} must be from "
                    f"{list(self.plan.applications)}, got {shown(name)}"
                )
        if compared is not None and compared.margin != self.plan.margin:
            raise ValueError(
                f"the margin at {shown(point.name)} must be the table's {self.plan.margin}, got "
                f"{compared.margin}"
            )

    @classmethod
    def of_visits(cls, plan: ComparisonPlan, visits: Iterable[ComparisonPoint]) -> ComparisonTable:
        """Build a table from visits in any order; the last visit of a point counts."""
        return cls(plan, *plan.latest(visits))

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of the candidates."""
        return tuple(self.plan.applications)

    @property
    def measurements(self) -> dict[str, Measurement]:
        """The measurements by candidate and point, e.g. ``"relu batch=8"``."""
        return {
            f"{name} {point.name}": point.comparison.measurements[name]
            for point in self.points
            if point.comparison is not None
            for name in self.timed_at(point)
        }

    @property
    def failed(self) -> tuple[ComparisonPoint, ...]:
        """The points at which a candidate failed."""
        return tuple(point for point in self.points if point.errors)

    @cached_property
    def missing(self) -> tuple[ComparisonPoint, ...]:
        """The points of an interrupted run that have not been visited."""
        visited = {point.key for point in self.points}
        return tuple(point for point in self.plan.points() if point.key not in visited)

    def __getitem__(self, name: str) -> ComparisonPoint:
        """Return the point with a name such as ``"batch=8 dtype=float16"``."""
        for point in self.points:
            if point.name == name:
                return point
        first = self.plan.points()[0].name
        raise KeyError(f"{name!r} is not a visited point; the first point is {first!r}")

    def timed_at(self, point: ComparisonPoint) -> tuple[str, ...]:
        """Return the candidates that were timed at a point."""
        timed = () if point.comparison is None else point.comparison.measurements
        return tuple(name for name in self.candidates if name in timed)

    @cached_property
    def _rows(self) -> dict[str, Row]:
        """The judged rows, by the names of their points."""
        return rows_of(
            {
                point.name: (point.comparison, self.timed_at(point))
                for point in self.points
                if point.comparison is not None
            }
        )

    @cached_property
    def outcomes(self) -> dict[str, Outcome]:
        """Which candidates are fastest, by the names of the points at which any was timed."""
        return {name: row.outcome for name, row in self._rows.items()}

    def judge(self, name: str, candidate: str, against: str | None = None) -> Judgement:
        """Return the verdict on a candidate at a point, with its reasons.

        A difference counts only at a false-discovery rate of 5 % among all pairs of candidates at
        all points.

        Args:
            name: name of the point.
            candidate: the candidate to judge.
            against: the candidate to compare it with. Default: the table's baseline.

        Raises:
            KeyError: the point is not in the table, or a candidate was not timed at it.
        """
        self[name]
        if name not in self._rows:
            raise KeyError(f"no candidate was timed at {name!r}")
        return self._rows[name].judge(candidate, self.plan.baseline if against is None else against)

    @cached_property
    def geomeans(self) -> dict[str, Ratio]:
        """Each candidate's geometric mean of the ratios to the baseline, by name.

        It covers the points at which every candidate was timed and has a ratio with an interval;
        empty if there are none.
        """
        baseline = self.plan.baseline
        others = [name for name in self.candidates if name != baseline]
        logarithms = [
            {
                name: logarithm(
                    point.comparison.ratio(name, baseline),
                    len(point.comparison.measurements[name].seconds),
                )
                for name in others
            }
            for point in self.points
            if point.comparison is not None and len(self.timed_at(point)) == len(self.candidates)
        ]
        complete = [each for each in logarithms if None not in each.values()]
        means = {
            name: geomean([known for each in complete if (known := each[name]) is not None])
            for name in others
        }
        return {name: mean for name, mean in means.items() if mean is not None}

    @cached_property
    def crossovers(self) -> tuple[Crossover, ...]:
        """Where along the main numeric axis the fastest candidate is overtaken by another."""
        return tuple(itertools.chain.from_iterable(map(self._crossovers, self._lines.items())))

    @property
    def verdict(self) -> tuple[str, ...]:
        """Which candidates are fastest where, in one sentence for each value of the other axes."""
        axis = main_axis(self.plan.axes)
        by_sentence: dict[str, list[str]] = {}
        for where, points in self._lines.items():
            values = [point.values[axis] for point in points]
            sentence = verdict_along(
                axis,
                values,
                [self.outcomes.get(point.name) for point in points],
                ordered=bool(numbers_of(self.plan.axes[axis])),
            )
            by_sentence.setdefault(sentence, []).append(where)
        if len(by_sentence) == 1 and len(self._lines) > 1:
            axes = self.plan.axes
            others = [each for each in axes if each != axis and len(axes[each]) > 1]
            return (f"at every {listed(others)}: {next(iter(by_sentence))}",)
        return tuple(
            f"{listed(places)}: {sentence}" if places != [""] else sentence
            for sentence, places in by_sentence.items()
        )

    @cached_property
    def _lines(self) -> dict[str, list[ComparisonPoint]]:
        """The visited points along the main axis, by the values of the other axes in words."""
        axis = main_axis(self.plan.axes)
        lines: dict[str, list[ComparisonPoint]] = {}
        for point in self.points:
            lines.setdefault(others_than(axis, point.values, self.plan.axes), []).append(point)
        if numbers_of(self.plan.axes[axis]):
            for points in lines.values():
                points.sort(key=lambda point: float(point.values[axis] or 0))
        return lines

    def _crossovers(self, line: tuple[str, Sequence[ComparisonPoint]]) -> Iterator[Crossover]:
        where, points = line
        axis = main_axis(self.plan.axes)
        numbers = numbers_of(self.plan.axes[axis])
        if not numbers:
            return
        leaders = {
            float(point.values[axis] or 0): self.outcomes[point.name].leaders
            for point in points
            if point.name in self.outcomes
        }
        leading = set(itertools.chain.from_iterable(leaders.values()))
        in_order = [name for name in self.candidates if name in leading]
        for pair in itertools.combinations(in_order, 2):
            pair_points = [
                PairPoint(float(point.values[axis] or 0), judged.ratio, judged.verdict)
                for point in points
                if {*pair} <= {*self.timed_at(point)}
                for judged in [self.judge(point.name, *pair)]
            ]
            for found in crossings(pair_points, pair, axis, where, geometric=is_geometric(numbers)):
                if found.below in leaders[found.after] and found.above in leaders[found.before]:
                    yield found

    def drift(self, margin: float = DRIFT_MARGIN) -> Change | None:
        """Return how the baseline's time at the control changed from its first visit to its last.

        Of several workers, it is the one on which the time changed most.

        Args:
            margin: relative difference that counts as equal.

        Returns:
            The change; None if no worker measured it twice.
        """
        return self.controlled.drift(margin)

    def workers(self, margin: float = DRIFT_MARGIN) -> dict[str, Change]:
        """Return how the baseline's time at the control differs between workers; see Sweep.workers.

        Args:
            margin: relative difference that counts as equal.
        """
        return self.controlled.workers(margin)

    @cached_property
    def controlled(self) -> Controls:
        """The baseline's times at the control, by worker."""
        visits = []
        for point in self.controls:
            timed = {} if point.comparison is None else point.comparison.measurements
            error = next(iter(point.errors.values()), "")
            visits.append((point.worker, timed.get(self.plan.baseline), error))
        return Controls.of(self.control, visits)

    @property
    def control(self) -> str:
        """The name of the candidate and the point whose times show drift."""
        return f"{self.plan.baseline} {self.plan.control.name}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings for a gate: verdicts and results against the baseline, as for Comparison."""
        found: list[Finding] = []
        baseline = self.plan.baseline
        for point in self.points:
            timed = self.timed_at(point)
            for name in timed if baseline in timed else ():
                judged = None if name == baseline else self.judge(point.name, name)
                findings = findings_of(judged, point.same_results.get(name))
                found += [(f"{name} {point.name}", finding) for finding in findings]
        return tuple(found)

    def exit_code(
        self, fail_on: Failure | Collection[Failure] = "slower", uncertain: int = 0
    ) -> int:
        """Return an exit code for CI from the verdicts on the candidates at all points.

        Args:
            fail_on: as for :meth:`Comparison.exit_code`.
            uncertain: exit code if no such finding occurs but a verdict is uncertain. Default: 0.

        Raises:
            ValueError: ``fail_on`` contains an unknown finding.
        """
        return exit_code_of(self.findings, check_failures(fail_on, FINDS), uncertain)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with schema version, outcomes, crossovers and means."""
        derived = {
            "verdict": list(self.verdict),
            "outcomes": {name: codec.encode(each) for name, each in self.outcomes.items()},
            "crossovers": [codec.encode(each) for each in self.crossovers],
            "geomeans": {
                name: codec.finite(codec.encode(each)) for name, each in self.geomeans.items()
            },
        }
        return super().to_dict() | derived

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the table, with a row for each point and candidate.

        The columns are the axes, candidate, the number of samples, the median with its 95 %
        interval, the ratio to the baseline with its interval and verdict, whether the candidate is
        among the fastest, the FLOP and byte rates with their shares of the device's ceilings, the
        GPU, the worker, with several workers the control's time on this one over that on a typical
        one, and the error of a candidate that failed.
        """
        return [row for point in self.points for row in rows_at(self, point)]

    def to_frame(self) -> pandas.DataFrame:
        """Return :meth:`to_rows` as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        return forms.frame_of(self.to_rows(), columns_of(self))

    def to_csv(self) -> str:
        """Return :meth:`to_rows` as CSV, without rounding numbers."""
        return forms.csv_of(self.to_rows(), columns_of(self))

    def plot(self, x: str | None = None) -> Figure:
        """Plot the medians of all candidates with their intervals, and the ratios to the baseline.

        An axis whose values are spaced geometrically is logarithmic.

        Args:
            x: the axis. Default: the first numeric axis, or the first axis.

        Returns:
            A figure to save or show, e.g. ``table.plot().save("table.png")``.

        Raises:
            ValueError: the axis is unknown, nothing was measured.
        """
        figure: Figure = self._drawing().plot(self, x)
        return figure
