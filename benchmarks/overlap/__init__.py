"""Whether compare judges work that overlaps by the time that it takes.

Each pair issues the same work twice: in line, and so that parts of it can run at the same time. The
pairs are drawn by a seed from five families: kernels on several streams, copies next to kernels,
graphs with branches, dependent launches, and backward passes of forward passes on two streams. Half
of the pairs have a true ratio within 0.9 and 1.1; "refused" has what was drawn before that.

The truth is the distance of two stamps of the GPU's clock on the current stream, before a call and
after it, less the distance of two stamps around nothing. Both calls of a pair are made in each
round, in random order, each after a flush, while a kernel holds the stream until all is issued;
rounds begin with a rest. Options of compare are its defaults. Gaps between kernels are part of the
truth and of the span, and not of busy time.
"""

import results
from common import summaries

FAMILIES = ("streams", "copies", "graph", "dependent", "autograd")
MARGIN = 0.01


def is_right(row: results.Row) -> bool:
    """Whether a verdict is the truth's at compare's margin, or, across its edge, may be."""
    low, high = row["true_interval"]
    if low > 1 + MARGIN or high < 1 - MARGIN:
        return bool(row["verdict"] == ("slower" if low > 1 else "faster"))
    if 1 - MARGIN <= low <= high <= 1 + MARGIN:
        return bool(row["verdict"] == "same")
    return bool(row["verdict"] != ("faster" if row["true_ratio"] > 1 else "slower"))


def error_of(row: results.Row, ratio: str = "ratio") -> float:
    return abs(float(row[ratio]) / float(row["true_ratio"]) - 1)


def summarise(rows: list[results.Row]) -> dict[str, float]:
    return summaries.known(
        pairs=len(rows),
        verdicts_right=summaries.share(map(is_right, rows)),
        ratio_error_max=summaries.most(map(error_of, rows)),
    )


def table(rows: list[results.Row]) -> str:
    lines = []
    for family in FAMILIES:
        if group := [row for row in rows if row["family"] == family]:
            true = summaries.least_to_most((row["true_ratio"] for row in group), ".3f")
            errors = [_worst(group, ratio) for ratio in ("ratio", "span_ratio", "sum_ratio")]
            lines.append((family, len(group), true, sum(map(is_right, group)), *errors))
    return summaries.markdown(
        "family | pairs: | true ratios: | verdicts right: "
        "| largest error of the ratio in busy time: | in span: | in the sum of durations:",
        lines,
    )


def _worst(rows: list[results.Row], ratio: str) -> str:
    worst = summaries.most(error_of(row, ratio) for row in rows if row[ratio] is not None)
    return "–" if worst is None else f"{worst:.2%}"
