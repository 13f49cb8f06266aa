"""Whether convtime's numbers for calls on the CPU hold on shared cores, with and without load.

A row is an operation that a seed draws. Families alternate, and durations are log-uniform from 5 µs
to 50 ms. The operation is compared with itself on copies of its tensors (A/A), and with 5 % more of
the same work, without load, and while another process takes a core for random intervals.
Interleaved calls without load give the true ratios. An operation whose ratio is outside of 1.04 to
1.06 is drawn again, and "refused" has the reason; no A/A pair is drawn again, and any verdict but
"same" and "uncertain" is false.

The true time of an operation is the median of calls without load, by Python's clock, right before
and after each call of time_op; where the two differ by more than 5 %, the machine was not quiet,
and all three are made again. The result of time_op under load is right if its interval meets that
of the true time, or if it says what disturbed it.

Further rows are calls with a planted cause, and controls, which convtime.diagnose looks at. Each
row is measured in a fresh process.
"""

import itertools
import math
from collections.abc import Iterable

import results
from common import summaries
from common.planting import NOTHING

FAMILIES = ("elementwise", "matmul", "norm", "conv", "loop", "sort")
THREADS = {1: "1", 0: "all"}
_UNBOUNDED = (0.0, math.inf)


def summarise(rows: list[results.Row]) -> dict[str, float]:
    diagnosed = [row for row in rows if "cause" in row]
    operations = [row for row in rows if "pairs" in row]
    same, planted = (pairs_of(operations, planted=planted) for planted in (False, True))
    quiet, loaded = (pairs_of(operations, planted=True, loaded=load) for load in (False, True))
    causes = [row for row in diagnosed if row["cause"] != NOTHING]
    controls = [row for row in diagnosed if row["cause"] == NOTHING]
    return summaries.known(
        aa_pairs=len(same),
        causes_planted=len(causes),
        opposite_verdicts=sum(_is(planted, "faster")) if planted else None,
        aa_false_verdicts=summaries.share(_is(same, "faster", "slower")),
        covered_or_marked=summaries.share(map(is_right, timed_of(operations, True))),
        found_5pct_quiet=summaries.share(_is(quiet, "slower")),
        found_5pct_loaded=summaries.share(_is(loaded, "slower")),
        causes_named_first=summaries.share(row["first"] == row["cause"] for row in causes),
        controls_clean=summaries.share(not row["causes"] for row in controls),
    )


def _is(pairs: Iterable[results.Row], *verdicts: str) -> list[bool]:
    return [pair["verdict"] in verdicts for pair in pairs]


def pairs_of(
    operations: Iterable[results.Row], *, planted: bool, loaded: bool | None = None
) -> list[results.Row]:
    return [
        pair
        for row in operations
        for pair in row["pairs"]
        if pair["planted"] == planted and loaded in (None, bool(pair["load"]))
    ]


def timed_of(operations: Iterable[results.Row], loaded: bool) -> list[results.Row]:
    return [timed for row in operations for timed in row["timed"] if bool(timed["load"]) == loaded]


def is_right(timed: results.Row) -> bool:
    return bool(timed["disturbance"]) or covers(timed)


def covers(timed: results.Row) -> bool:
    ends = zip(timed["interval"], _UNBOUNDED, strict=True)
    low, high = (limit if end is None else end for end, limit in ends)
    true_low, true_high = timed["true_seconds_interval"]
    return bool(low <= true_high and true_low <= high)


def table(rows: list[results.Row]) -> str:
    lines = []
    operations = [row for row in rows if "pairs" in row]
    for family, (threads, name) in itertools.product(FAMILIES, THREADS.items()):
        group = [row for row in operations if (row["family"], row["threads"]) == (family, threads)]
        if group:
            lines += [(family, name, *_cells(group, loaded)) for loaded in (False, True)]
    return summaries.markdown(
        "family | threads: | load | operations: | durations (µs): | A/A: false verdicts: "
        "| 5 % slower: found: | time_op: covered: | covered or marked:",
        lines,
    )


def causes_table(rows: list[results.Row]) -> str:
    header = "call | drawn | named first | named besides | seconds:"
    return summaries.markdown(header, (summaries.diagnosis(row) for row in rows if "cause" in row))


def _cells(group: list[results.Row], loaded: bool) -> tuple[object, ...]:
    same, planted = (pairs_of(group, planted=each, loaded=loaded) for each in (False, True))
    timed = timed_of(group, loaded)
    right = [_is(same, "faster", "slower"), _is(planted, "slower")]
    right += [[*map(covers, timed)], [*map(is_right, timed)]]
    return (
        summaries.yes(loaded),
        len(group),
        summaries.least_to_most((1e6 * row["true_seconds"] for row in group), ".0f"),
        *(f"{sum(found)} of {len(found)}" for found in right),
    )
