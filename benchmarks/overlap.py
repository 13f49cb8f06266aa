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

import functools
import statistics
from collections.abc import Mapping

import results
from common import running, summaries
from common.running import Measure

SEED = 20261124
PAIRS = 30
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
            true = summaries.reach((row["true_ratio"] for row in group), ".3f")
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


def make_cases(seed: int, pairs: int, device: running.Device) -> Mapping[str, Measure]:
    cases: dict[str, Measure] = {}
    for number in range(pairs):
        index, family = number // len(FAMILIES), FAMILIES[number % len(FAMILIES)]
        cases[f"{family}/{seed}/{index}"] = functools.partial(
            measure, family, f"{seed}/{family}/{index}", device, close=index % 2 == 0
        )
    return cases


def measure(family: str, seed: str, device: running.Device, *, close: bool) -> results.Row:
    from overlap_parts.pairs import MAKERS
    from overlap_parts.truth import draw_pair

    from convtime import compare

    pair, drawn = draw_pair(MAKERS[family], seed, close=close, device=device)
    compared = compare({"in line": pair.in_line, "overlapping": pair.overlapping}, check=None)
    ratio = compared.ratio("overlapping")
    judged = compared.judge("overlapping")
    base, other = (compared.measurements[name] for name in ("in line", "overlapping"))
    row = {
        "family": family,
        "seed": seed,
        **drawn,
        "verdict": judged.verdict,
        "sentence": judged.sentence,
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "method": other.method.used,
        "method_reason": other.method.reason,
        "queue": other.queue.used,
        "queue_reason": other.queue.reason,
        "regime": other.regime.used,
    }
    for metric in ("busy", "span", "sum"):
        under, over = (getattr(each, f"{metric}_seconds") for each in (base, other))
        # A method may not know these times.
        row[f"{metric}_ratio"] = summaries.median_ratio(over, under) if over and under else None
        row[f"{metric}_seconds"] = [
            statistics.median(samples) if samples else None for samples in (under, over)
        ]
    return row


def tell(row: results.Row) -> str:
    ratios = (
        f"{metric} {row[f'{metric}_ratio']:.4f}"
        for metric in ("busy", "span", "sum")
        if row[f"{metric}_ratio"] is not None
    )
    return (
        f"true {row['true_ratio']:.4f}, found {row['ratio']:.4f} ({row['verdict']}), "
        f"{', '.join(ratios)}, {1e6 * row['true_seconds'][0]:.0f} µs, {row['draws']} draws"
    )


def main() -> None:
    parser = results.argument_parser(__doc__, resumable=True)
    parser.add_argument("--seed", type=int, default=SEED, help="that pairs are drawn by")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="over all families")
    options = parser.parse_args()
    device = running.find_gpu(options.device)
    file = running.open_file("overlap", summarise, options, device)
    cases = make_cases(options.seed, options.pairs, device)
    running.measure_pending(file, cases, tell, seconds=options.seconds)


if __name__ == "__main__":
    main()
