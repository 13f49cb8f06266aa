"""The result of a comparison over axes: which candidates are fastest, and where."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import shown
from convtime.regression.significance import geomean
from convtime.sweeps.fastest import (
    Crossover,
    JudgedTable,
    Outcome,
    crossings,
    join_names,
    log_ratio,
    verdict_along,
)
from convtime.sweeps.plan import (
    ComparisonPlan,
    ComparisonPoint,
    is_geometric,
    main_axis,
    numbers_of,
    others_than,
)
from convtime.sweeps.table import PointTable
from convtime.timing.comparison import FINDS, findings_of
from convtime.timing.verdict import (
    Failure,
    Finding,
    Judgement,
    Ratio,
    check_failures,
    exit_code_of,
)
from convtime.view.figure import Figure

#: The columns other than the axes; an axis must not have one of these names.
COMPARISON_COLUMNS = (
    "candidate",
    *("count", "median", "median_low", "median_high"),
    *("ratio", "ratio_low", "ratio_high", "verdict", "outcome"),
    *("flops_per_second", "flops_share", "bytes_per_second", "bytes_share"),
    *("gpu", "worker", "control_ratio", "error"),
)


@dataclasses.dataclass(frozen=True, repr=False)
class ComparisonTable(PointTable[ComparisonPoint], show="convtime.sweeps.show_comparison"):
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
        require(
            self.plan.baseline in self.candidates,
            f"baseline must be one of {list(self.candidates)}, got {shown(self.plan.baseline)}",
        )
        super().__post_init__()
        for point in (*self.points, *self.controls):
            compared = point.comparison
            known = self.candidates if compared is None else (*self.candidates, compared.control)
            names = dict.fromkeys((*point.measurements, *point.errors, *point.same_results))
            unknown = ", ".join(shown(name) for name in names if name not in known)
            require(
                not unknown,
                f"candidates at {shown(point.name)} must be from {list(self.candidates)}, got "
                f"{unknown}",
            )
            require(
                compared is None or compared.margin == self.plan.margin,
                f"the margin at {shown(point.name)} must be the table's {self.plan.margin}, got "
                f"{compared and compared.margin}",
            )
        gpus: dict[str, str] = {}
        for name, measured in self.measurements.items():
            gpus.setdefault(str(measured.provenance.get("gpu")), name)
        if len(gpus) > 1:
            (one, first), (other, second), *_ = gpus.items()
            raise ValueError(
                f"all points of a table must be measured on one GPU, got {shown(first)} on {one} "
                f"and {shown(second)} on {other}"
            )

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of the candidates."""
        return tuple(self.plan.applications)

    @cached_property
    def _judged(self) -> JudgedTable:
        return JudgedTable(
            {
                point.name: (point.comparison, self.timed_at(point))
                for point in self.points
                if point.comparison is not None
            }
        )

    @cached_property
    def outcomes(self) -> dict[str, Outcome]:
        """Which candidates are fastest, by the names of the points at which any was timed."""
        return self._judged.outcomes

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
        if self[name].comparison is None:
            raise KeyError(f"no candidate was timed at {name!r}")
        return self._judged.judge(
            name, candidate, self.plan.baseline if against is None else against
        )

    def against_baseline(self, point: ComparisonPoint, candidate: str) -> Judgement | None:
        """Return the verdict on a candidate; None for the baseline, or if either was not timed."""
        baseline = self.plan.baseline
        if candidate == baseline or not {candidate, baseline} <= {*point.measurements}:
            return None
        return self.judge(point.name, candidate)

    @cached_property
    def geomeans(self) -> dict[str, Ratio]:
        """Each candidate's geometric mean of the ratios to the baseline, by name.

        It covers the points at which every candidate was timed and has a ratio with an interval;
        empty if there are none.
        """
        others = [name for name in self.candidates if name != self.plan.baseline]
        logarithms: list[list[Any]] = [
            [log_ratio(point.comparison, name, self.plan.baseline) for name in others]
            for point in self.points
            if point.comparison is not None and len(self.timed_at(point)) == len(self.candidates)
        ]
        complete = [ratios for ratios in logarithms if None not in ratios]
        means = zip(others, map(geomean, zip(*complete, strict=True)), strict=False)
        return {name: mean for name, mean in means if mean is not None}

    @cached_property
    def crossovers(self) -> tuple[Crossover, ...]:
        """Where along the main numeric axis the fastest candidate is overtaken by another."""
        if not numbers_of(self.plan.axes[main_axis(self.plan.axes)]):
            return ()
        return tuple(itertools.chain.from_iterable(map(self._crossovers, self._lines.items())))

    def _crossovers(self, line: tuple[str, Sequence[ComparisonPoint]]) -> Iterator[Crossover]:
        where, points = line
        axis = main_axis(self.plan.axes)
        at = {float(point.values[axis] or 0): point for point in points if point.measurements}
        leaders = {x: self.outcomes[point.name].leaders for x, point in at.items()}
        leading = {*itertools.chain.from_iterable(leaders.values())}
        for pair in itertools.combinations(
            [name for name in self.candidates if name in leading], 2
        ):
            judgements = {
                x: self.judge(point.name, *pair)
                for x, point in at.items()
                if {*pair} <= {*point.measurements}
            }
            geometric = is_geometric(numbers_of(self.plan.axes[axis]))
            for crossover in crossings(judgements, pair, axis, where, geometric=geometric):
                is_fastest_below = crossover.below in leaders[crossover.after]
                if is_fastest_below and crossover.above in leaders[crossover.before]:
                    yield crossover

    @property
    def verdict(self) -> tuple[str, ...]:
        """Which candidates are fastest where, in one sentence for each value of the other axes."""
        axes = self.plan.axes
        axis = main_axis(axes)
        by_sentence: dict[str, list[str]] = {}
        for where, points in self._lines.items():
            sentence = verdict_along(
                axis,
                [point.values[axis] for point in points],
                [self.outcomes.get(point.name) for point in points],
                ordered=bool(numbers_of(axes[axis])),
            )
            by_sentence.setdefault(sentence, []).append(where)
        if len(by_sentence) == 1 and len(self._lines) > 1:
            others = [name for name in axes if name != axis and len(axes[name]) > 1]
            return (f"at every {join_names(others)}: {next(iter(by_sentence))}",)
        return tuple(
            f"{join_names(lines)}: {sentence}" if lines != [""] else sentence
            for sentence, lines in by_sentence.items()
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

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings for a gate: verdicts and results against the baseline, as for Comparison."""
        return tuple(
            (f"{name} {point.name}", finding)
            for point in self.points
            if self.plan.baseline in point.measurements
            for name in self.timed_at(point)
            for finding in findings_of(
                self.against_baseline(point, name), point.same_results.get(name)
            )
        )

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
            "outcomes": {name: codec.encode(outcome) for name, outcome in self.outcomes.items()},
            "crossovers": [codec.encode(crossover) for crossover in self.crossovers],
            "geomeans": {
                name: codec.finite(codec.encode(mean)) for name, mean in self.geomeans.items()
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
        ratios = self.worker_ratios()
        return [
            {
                **point.values,
                "candidate": name,
                "worker": point.worker,
                "control_ratio": ratios.get(point.worker),
                **self._facts(point, name),
            }
            for point in self.points
            for name in self.candidates
        ]

    def _facts(self, point: ComparisonPoint, name: str) -> dict[str, Any]:
        """Return the facts about a candidate at a point, by column."""
        if name not in point.measurements:
            return {"error": point.errors.get(name, "")}
        measured = point.measurements[name]
        outcome = self.outcomes[point.name]
        low, high = map(codec.finite, measured.median_interval)
        facts = {
            "count": len(measured.seconds),
            "median": measured.median,
            "median_low": low,
            "median_high": high,
            "outcome": outcome.kind if name in outcome.leaders else "",
            "gpu": measured.provenance.get("gpu"),
        }
        judged = self.against_baseline(point, name)
        if judged is not None:
            facts |= {
                "ratio": codec.finite(judged.ratio.value),
                "ratio_low": codec.finite(judged.ratio.low),
                "ratio_high": codec.finite(judged.ratio.high),
                "verdict": judged.verdict,
            }
        for quantity in ("flops", "bytes"):
            column = f"{quantity}_per_second"
            rate = getattr(measured, column)
            if rate is not None:
                facts[column] = rate
                if measured.ceilings is not None:
                    facts[f"{quantity}_share"] = rate / getattr(measured.ceilings, column)
        return facts

    @property
    def _columns(self) -> list[str]:
        return [*self.plan.axes, *COMPARISON_COLUMNS]

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
