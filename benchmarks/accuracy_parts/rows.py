"""How the rows of accuracy.json are named and read."""

import statistics
from typing import Literal

import results

CACHES: tuple[Literal["cold", "warm"], ...] = ("cold", "warm")
METHODS: tuple[Literal["kernel", "event", "graph"], ...] = ("kernel", "event", "graph")
NVBENCH = "cuda-bench"
# Kernels that spin for so long tell what lies between the stamps and the traced start and end, for
# others of the same grid, or of more blocks than fit on the device at a time.
STAMPED_REFERENCE_NS = 1_024


def is_op(row: results.Row) -> bool:
    return row["key"].rpartition("/")[2] in CACHES


def is_complete(row: results.Row) -> bool:
    times = [row["truth"].get("kernel"), row["kernel"].get("median"), row["event"].get("median")]
    return all(times) and bool(row["graph"].get("median") or row["graph"].get("reason"))


def true_seconds(row: results.Row, what: str) -> float:
    """By the profiler: of "kernel", the sum of the kernels, or of "span"."""
    return float(statistics.median(row["truth"][what]))


def truth_for_methods(row: results.Row) -> dict[str, float]:
    """Method -> the seconds that it should give; method graph only where a graph could be made."""
    what = "kernel" if row["truth"]["kernels"] == 1 else "span"

    def added(events: results.Row) -> float:
        passes = zip(events["traced"], events["untraced"], strict=True)
        return float(statistics.median(traced - untraced for traced, untraced in passes))

    # What the profiler lengthens a call by beyond a kernel that spins.
    tracing = added(row["truth"]["events"]) - added(row["truth"]["events_of_spin"])
    truth = {
        "kernel": true_seconds(row, "kernel"),
        "event": true_seconds(row, what) - max(0.0, tracing),
    }
    in_a_graph = row["truth_of_graph"]
    if "stamps" in in_a_graph:
        around = in_a_graph["stamps_of_spin"] - in_a_graph["kernel_of_spin"]
        truth["graph"] = statistics.median(in_a_graph["stamps"]) - around
    return truth


def measured_seconds(row: results.Row, method: str) -> float:
    return float(statistics.median(row[method]["median"]))


def kernel_seconds_finely(row: results.Row) -> float:
    return float(statistics.median(row["kernel"]["midmean"]))


def traced_and_stamped(rows: list[results.Row]) -> dict[str, tuple[float, float]]:
    """Key -> kernel time less launch and exit, and time by the stamps, in seconds."""
    stamped = [row for row in rows if row["key"].startswith("stamped/")]
    offsets = {
        tuple(row["grid"]): kernel_seconds_finely(row) - statistics.median(row["stamps"])
        for row in stamped
        if row["asked_ns"] == STAMPED_REFERENCE_NS
    }
    return {
        row["key"]: (
            kernel_seconds_finely(row) - offsets[tuple(row["reference_grid"])],
            float(statistics.median(row["stamps"])),
        )
        for row in stamped
        if row["asked_ns"] != STAMPED_REFERENCE_NS and tuple(row["reference_grid"]) in offsets
    }
