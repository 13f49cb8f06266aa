"""Whether convtime's numbers for calls on the CPU hold on shared cores, with and without load.

A row is an operation that a seed draws. Families alternate, and durations are log-uniform from 5 µs
to 50 ms. The operation is compared with itself on copies of its tensors (A/A), and with 5 % more of
the same work. Both comparisons are made without load, and while another process takes a core for
random intervals. Interleaved calls without load give the true ratio of the second comparison. An
operation whose ratio is outside of 1.04 to 1.06 is drawn again, and "refused" has the reason. Their
ratio in the A/A pair, "true_copy_ratio", shows the effect of the addresses; no pair is drawn again
for it, and any verdict but "same" and "uncertain" is false.

The true time of an operation is the median of calls without load, by Python's clock, right before
and after each call of time_op; where the two differ by more than 5 %, the machine was not quiet,
and all three are made again, or the operation is drawn again. The result of time_op under load is
right if its interval meets that of the true time, or if it says what disturbed it.

Further rows are calls with a planted cause, and controls, which convtime.diagnose looks at: whether
it names the cause first, and nothing where nothing is planted.

Each row is measured in a fresh process.
"""

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Literal

import results
from common import running, summaries
from common.planting import NOTHING

SEED = 20261124
PAIRS = 208  # A/A; each operation gives one without load and one under load
FAMILIES = ("elementwise", "matmul", "norm", "conv", "loop", "sort")
PAGES: tuple[Literal["fresh"], Literal["retained"]] = ("fresh", "retained")
THREADS = {1: "1", 0: "all"}
TIMEOUT_SECONDS = 180.0
_UNBOUNDED = (0.0, math.inf)


def summarise(rows: list[results.Row]) -> dict[str, float]:
    diagnosed = [row for row in rows if "cause" in row]
    operations = [row for row in rows if "pairs" in row]
    same, planted = (pairs_of(operations, planted=planted) for planted in (False, True))
    causes = [row for row in diagnosed if row["cause"] != NOTHING]
    controls = [row for row in diagnosed if row["cause"] == NOTHING]
    quiet, loaded = ([pair for pair in planted if bool(pair["load"]) == load] for load in (0, 1))
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


def pairs_of(operations: Iterable[results.Row], *, planted: bool) -> list[results.Row]:
    return [pair for row in operations for pair in row["pairs"] if pair["planted"] == planted]


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
    same, planted = (
        [pair for pair in pairs_of(group, planted=planted) if bool(pair["load"]) == loaded]
        for planted in (False, True)
    )
    timed = timed_of(group, loaded)
    right = [_is(same, "faster", "slower"), _is(planted, "slower")]
    right += [[*map(covers, timed)], [*map(is_right, timed)]]
    return (
        summaries.yes(loaded),
        len(group),
        summaries.reach((1e6 * row["true_seconds"] for row in group), ".0f"),
        *(f"{sum(found)} of {len(found)}" for found in right),
    )


def make_cases(seed: int, pairs: int) -> dict[str, running.Measure]:
    """Diagnoses first; then families alternate, and within each family the settings."""
    from cpu_parts.causes import CAUSES, CONTROLS, may_plant_quotas
    from cpu_parts.fresh import run_forked
    from cpu_parts.measure import Settings, diagnosis_row, operation_row

    forked = functools.partial(run_forked, timeout=TIMEOUT_SECONDS)
    cases: dict[str, running.Measure] = {
        key: functools.partial(forked, diagnosis_row, key, str(seed))
        for key, plant in {**CAUSES, **CONTROLS}.items()
        if plant.cause != "quota" or may_plant_quotas()
    }
    for number in range(math.ceil(pairs / 2)):
        index, family = number // len(FAMILIES), FAMILIES[number % len(FAMILIES)]
        threads = tuple(THREADS)[index % 2]
        settings = Settings(family, threads, PAGES[index // 2 % 2])
        key = f"{family}/{THREADS[threads]}/{seed}/{index}"
        cases[key] = functools.partial(forked, operation_row, settings, key)
    return cases


def tell(row: results.Row) -> str:
    if "cause" in row:
        named = summaries.named_causes(row, NOTHING, 2)
        return f"{named}; {row['drawn']}; {row['seconds']:.1f} s"
    verdicts = ", ".join(
        f"{'5 %' if pair['planted'] else 'A/A'}{' loaded' if pair['load'] else ''} "
        f"{pair['ratio']:.3f} ({pair['verdict']})"
        for pair in row["pairs"]
    )
    times = ", ".join(
        f"{'loaded' if timed['load'] else 'quiet'} {1e6 * timed['median']:.1f}"
        f" ({'covers' if covers(timed) else 'marked' if timed['disturbance'] else 'WRONG'})"
        for timed in row["timed"]
    )
    return (
        f"{row['what']}: {1e6 * row['true_seconds']:.1f} µs, {times}; true "
        f"{row['true_copy_ratio']:.4f} and {row['true_ratio']:.4f}, {verdicts}; "
        f"{row['draws']} draws, {sum(row['took'].values()):.1f} s"
    )


def main() -> None:
    parser = results.argument_parser(__doc__, resumable=True)
    parser.add_argument("--seed", type=int, default=SEED, help="that operations are drawn by")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="A/A, two for each operation")
    options = parser.parse_args()
    if options.device not in (None, "cpu"):
        raise SystemExit(f"error: --device must be cpu for this benchmark, got {options.device!r}")

    import torch

    file = running.open_file("cpu", summarise, options, torch.device("cpu"))
    cases = make_cases(options.seed, options.pairs)
    running.measure_pending(file, cases, tell, seconds=options.seconds)


if __name__ == "__main__":
    main()
