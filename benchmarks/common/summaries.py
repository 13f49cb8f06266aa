"""What several benchmarks make of their rows: numbers, cells and pictures, without torch."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def png_of(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
