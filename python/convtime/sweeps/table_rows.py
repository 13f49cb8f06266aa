"""The rows of a table of comparisons: one for each point and candidate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convtime.sweeps.comparison_plan import ComparisonPoint
    from convtime.sweeps.table import ComparisonTable
    from convtime.timing.measurement import Measurement

#: The columns other than the axes; an axis must not have one of these names.
COLUMNS = (
    "candidate",
    *("count", "median", "median_low", "median_high"),
    *("ratio", "ratio_low", "ratio_high", "verdict", "outcome"),
    *("flops_per_second", "flops_share", "bytes_per_second", "bytes_share"),
    *("gpu", "worker", "control_ratio", "error"),
)


def columns_of(table: ComparisonTable) -> list[str]:
    """Return the columns of a table, with its axes."""
    return [*table.plan.axes, *COLUMNS]


def rows_at(table: ComparisonTable, point: ComparisonPoint) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate at a point."""
    ratio = table.controlled.ratios().get(point.worker)
    for name in table.candidates:
        row = {**point.values, "candidate": name, "worker": point.worker, "control_ratio": ratio}
        if point.comparison is None or name not in point.comparison.measurements:
            yield {**row, "error": point.errors.get(name, "")}
            continue
        measured = point.comparison.measurements[name]
        outcome = table.outcomes[point.name]
        low, high = map(_known, measured.median_interval)
        yield {
            **row,
            "count": len(measured.seconds),
            "median": measured.median,
            "median_low": low,
            "median_high": high,
            **_against_baseline(table, point, name),
            "outcome": outcome.kind if name in outcome.leaders else "",
            **_rates(measured),
            "gpu": measured.provenance.get("gpu"),
        }


def _against_baseline(table: ComparisonTable, point: ComparisonPoint, name: str) -> dict[str, Any]:
    baseline = table.plan.baseline
    if name == baseline or baseline not in table.timed_at(point):
        return {}
    judged = table.judge(point.name, name)
    ratio = judged.ratio
    return {
        "ratio": _known(ratio.value),
        "ratio_low": _known(ratio.low),
        "ratio_high": _known(ratio.high),
        "verdict": judged.verdict,
    }


def _rates(measured: Measurement) -> dict[str, Any]:
    """Return the rates, and their shares of the device's ceilings, as far as they are known."""
    found: dict[str, Any] = {}
    for what in ("flops", "bytes"):
        rate = getattr(measured, f"{what}_per_second")
        if rate is not None:
            found[f"{what}_per_second"] = rate
            if measured.ceilings is not None:
                ceiling = getattr(measured.ceilings, f"{what}_per_second")
                found[f"{what}_share"] = rate / ceiling
    return found


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
