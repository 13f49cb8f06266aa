"""Whether compare judges work that overlaps by the time that it takes.

Each pair issues the same work twice: in line, and so that parts of it can run at the same time. The
pairs are drawn by a seed from five families: kernels on several streams, copies next to kernels,
graphs with branches, dependent launches, and backward passes of forward passes on two streams. Half
of the pairs have a true ratio within 0.9 and 1.1.

The truth is the distance of two stamps of the GPU's clock on the current stream, before a call and
after it, less the distance of two stamps around nothing. Both calls of a pair are made in each
round, in random order, each after a flush, while a kernel holds the stream until all is issued;
rounds begin with a rest. Options of compare are its defaults.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import results
from common import running
from common.running import Measure

if TYPE_CHECKING:
    import torch

SEED = 20261124
PAIRS_PER_FAMILY = 6
FAMILIES = ("streams", "copies", "graph", "dependent", "autograd")
MARGIN = 0.01


def truth_verdict(low: float, high: float) -> str:
    """What an interval of the true ratio says at compare's margin; "unclear" across its edge."""
    if low > 1 + MARGIN:
        return "slower"
    if high < 1 - MARGIN:
        return "faster"
    return "same" if 1 - MARGIN <= low <= high <= 1 + MARGIN else "unclear"


def is_right(row: results.Row) -> bool:
    """Whether a verdict is the truth's, or does not contradict it where that is unclear."""
    true = truth_verdict(*row["true_interval"])
    if true == "unclear":
        return bool(row["verdict"] != ("faster" if row["true_ratio"] > 1 else "slower"))
    return bool(row["verdict"] == true)


def error_of(row: results.Row, ratio: str = "ratio") -> float:
    """How far a ratio is from the true one, as a share of it."""
    return abs(float(row[ratio]) / float(row["true_ratio"]) - 1)


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Over all pairs."""
    summary: dict[str, float] = {"pairs": len(rows)}
    if rows:
        summary["verdicts_right"] = sum(map(is_right, rows)) / len(rows)
        summary["ratio_error_max"] = max(map(error_of, rows))
    return summary


def table(rows: list[results.Row]) -> str:
    """Markdown, a line per family."""
    lines = [
        "| family | pairs | true ratios | verdicts right | largest error of the ratio in busy time "
        "| in span | in the sum of durations |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for family in FAMILIES:
        group = [row for row in rows if row["family"] == family]
        if not group:
            continue
        ratios = [row["true_ratio"] for row in group]
        errors = [
            f"{max(error_of(row, ratio) for row in group):.2%}"
            for ratio in ("ratio", "span_ratio", "sum_ratio")
        ]
        lines.append(
            f"| {family} | {len(group)} | {min(ratios):.3f} to {max(ratios):.3f} "
            f"| {sum(map(is_right, group))} | {' | '.join(errors)} |"
        )
    return "\n".join(lines)


def make_cases(device: torch.device) -> Mapping[str, Measure]:
    from overlap_parts.pairs import MAKERS

    cases: dict[str, Measure] = {}
    for index in range(PAIRS_PER_FAMILY):
        for family in FAMILIES:
            cases[f"{family}/{SEED}/{index}"] = functools.partial(
                measure, family, MAKERS[family], index, device
            )
    return cases


def measure(family: str, make: Callable[..., Any], index: int, device: torch.device) -> results.Row:
    from overlap_parts.draw import draw_pair

    from convtime import compare

    pair, drawn = draw_pair(make, f"{SEED}/{family}/{index}", close=index % 2 == 0, device=device)
    compared = compare({"in line": pair.in_line, "overlapping": pair.overlapping}, check=None)
    ratio = compared.ratio("overlapping")
    judged = compared.judge("overlapping")
    base, other = (compared.measurements[name] for name in ("in line", "overlapping"))

    def ratio_of(metric: str) -> float:
        over, under = (getattr(each, f"{metric}_seconds") for each in (other, base))
        pairs = zip(over, under, strict=True)
        return statistics.median(a / b for a, b in pairs) if over and under else float("nan")

    return {
        "family": family,
        **drawn,
        "verdict": judged.verdict,
        "sentence": judged.sentence,
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "span_ratio": ratio_of("span"),
        "sum_ratio": ratio_of("sum"),
        "busy_seconds": [base.median, other.median],
        "method": other.method,
        "queue": other.queue,
        "queue_reason": other.queue_reason,
        "regime": other.regime,
    }


def main() -> None:
    def tell(row: results.Row) -> str:
        return (
            f"true {row['true_ratio']:.4f}, busy {row['ratio']:.4f} ({row['verdict']}), span "
            f"{row['span_ratio']:.4f}, sum {row['sum_ratio']:.4f}, "
            f"{1e6 * row['true_seconds'][0]:.0f} µs, {row['draws']} draws"
        )

    running.run_on_gpu("overlap", __doc__, summarise, make_cases, tell=tell)


if __name__ == "__main__":
    main()
