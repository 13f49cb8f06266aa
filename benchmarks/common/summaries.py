"""Numbers and cells that several benchmarks make of their rows, without torch."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def spread(medians: Sequence[float]) -> float:
    """The range of medians over their median."""
    return (max(medians) - min(medians)) / statistics.median(medians)


def median_and_spread(medians: Sequence[float]) -> tuple[str, str]:
    """Cells of a table: the median of seconds, in µs, and the spread; dashes without medians."""
    if not medians:
        return "–", "–"
    return f"{1e6 * statistics.median(medians):.2f}", f"{100 * spread(medians):.2f} %"


def midmean(values: Sequence[float]) -> float:
    """The mean of the middle half: little moved by outliers, and finer than the clock's tick."""
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


def median_ratio(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """The median over the rounds, each of which gave one sample of both: convtime.Ratio's."""
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


@dataclasses.dataclass(frozen=True)
class Speedup:
    """A peer's time over convtime's, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Speedup:
        return Speedup(factor * self.value, factor * self.low, factor * self.high)


def speedup(row: Mapping[str, Any], peer: str) -> Speedup:
    """Of a row over a peer; an interval of no width in results that were stored without one."""
    if "speedups" in row:
        return Speedup(**row["speedups"][peer])
    value = row["seconds"][peer] / row["seconds"]["convtime"]
    return Speedup(value, value, value)


def least(speedups: Iterable[Speedup]) -> float:
    """The minimum that a goal judges: a goal is missed where an interval is wholly below it."""
    return min(each.high for each in speedups)


def geomean(speedups: Iterable[Speedup]) -> float:
    return statistics.geometric_mean(each.value for each in speedups)


def distribution(heading: str, groups: Mapping[str, Sequence[Speedup]]) -> str:
    """Markdown: the worst, the median and the best of each group that is not empty."""
    lines = [f"| {heading} | cases | worst | its interval | median | best |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for name, speedups in groups.items():
        if not speedups:
            continue
        worst = min(speedups, key=lambda each: each.value)
        known = worst.low < worst.high
        cells = [
            name,
            str(len(speedups)),
            f"{worst.value:.2f}",
            f"{worst.low:.2f} to {worst.high:.2f}" if known else "–",
            f"{statistics.median(each.value for each in speedups):.2f}",
            f"{max(each.value for each in speedups):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_seeds(rows: Iterable[Mapping[str, Any]]) -> str:
    """A sentence: which of the rows were drawn, and by which seed."""
    rows = list(rows)
    drawn = [row["seed"] for row in rows if "seed" in row]
    seeds = ", ".join(map(str, sorted(set(drawn))))
    origin = f"{len(drawn)} rows are drawn by seed {seeds}" if drawn else "No row is drawn"
    return f"{origin}; {len(rows) - len(drawn)} are of the networks' own shapes."
