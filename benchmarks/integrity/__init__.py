"""Whether a timing and a profiler of one process get all of their records, and notice losses.

Rows are of three kinds. An interleaving is a profiler and a timing in one fresh process, in some
order and on some threads; the profile's kernels are counted, and set against those of a control
process that makes the same calls untimed. Records are those of 10⁶ launches and more, each of which
has to have its own. Planted losses are C++ tests that lose, change or withhold records between
CUPTI and what reads them: a loss is noticed where a passing one costs batches, a lasting one the
method, and neither a wrong sample.
"""

from collections import defaultdict

import results
from common import summaries


def summarise(rows: list[results.Row]) -> dict[str, float]:
    interleavings, counted = of_kind(rows, "interleaving"), of_kind(rows, "records")
    losses = planted_losses(rows)
    timings = [timing for row in interleavings for timing in row.get("timings", [])]
    is_sound = not any(timing["incomplete"] for timing in timings) and all(
        row["method"] == "kernel" and row["incomplete"] == 0 and row["shortest"] > 0
        for row in counted
    )
    return summaries.known(
        profiler_interleavings=len(interleavings),
        kernels_lost_from_profiler=sum(map(lost_kernels, interleavings)),
        # Where the control did not.
        crashes=sum(bool(row["exit"] and not row["control_exit"]) for row in interleavings),
        # None of them, where any was lost.
        records=sum(row["records"] for row in counted) if is_sound else 0,
        planted_losses=len(losses),
        planted_losses_detected=summaries.share(losses.values()),
    )


def of_kind(rows: list[results.Row], kind: str) -> list[results.Row]:
    return [row for row in rows if row["kind"] == kind]


def lost_kernels(row: results.Row) -> int:
    """Kernels that profiles lack beyond those that the control's lack; all of them in a crash."""
    in_control: int = row["in_control"] or 0
    if "in_profile" not in row:
        return in_control
    lost_by_itself = (row["launched_in_control"] or 0) - in_control
    lost: int = row["launched"] - row["in_profile"] - lost_by_itself
    return max(0, lost)


def planted_losses(rows: list[results.Row]) -> dict[str, bool]:
    """Loss -> whether each test of it passed."""
    passed: dict[str, bool] = defaultdict(lambda: True)
    for row in of_kind(rows, "planted"):
        for test, has_passed in row["tests"].items():
            # "Of/PlantedLoss.Test/Loss", or "PlantedLoss.OfALossEndsIn…"
            loss = test.rpartition("/")[2].rpartition(".")[2]
            passed[loss] = passed[loss] and has_passed
    return dict(passed)


def table(rows: list[results.Row]) -> str:
    lines = []
    for row in of_kind(rows, "interleaving"):
        timings = row.get("timings", [])
        methods = ", ".join(dict.fromkeys(timing["method"] for timing in timings)) or "–"
        reasons = dict.fromkeys(timing["reason"] for timing in timings if timing["reason"])
        crashed = f", ended with {row['exit']}, the control with {row['control_exit']}"
        name = row["key"] + (crashed if row["exit"] else "")
        counts = (row.get("in_profile", "–"), row["in_control"])
        lines.append((name, *counts, methods, "; ".join(reasons)))
    records = summaries.filled(
        "records | of kernels: | calls that lack one: | batches repeated:",
        "{moment} | {records:,} | {incomplete} | {faulty_batches}",
        (row | {"moment": row["key"].removeprefix("records ")} for row in of_kind(rows, "records")),
    )
    losses = ((loss, summaries.yes(noticed)) for loss, noticed in planted_losses(rows).items())
    header = "interleaving | the profile's kernels: | of a control: | timed by | because"
    tables = (summaries.markdown(header, lines), records)
    return "\n\n".join((*tables, summaries.markdown("planted loss | noticed", losses)))
