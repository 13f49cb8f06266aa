"""What the rows of accuracy.json are judged by."""

from __future__ import annotations

import itertools
import statistics

import results

from accuracy_parts.rows import (
    is_complete,
    is_op,
    kernel_seconds_finely,
    measured_seconds,
    traced_and_stamped,
    truth_for_methods,
)

_QUICK_UP_TO_SECONDS = 200e-6  # longer operations are called five times, however long that takes


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Of what the rows yield; what they do not yield is left out."""
    ops = [row for row in rows if is_op(row) and is_complete(row)]
    summary: dict[str, float] = {"ops": len(ops)}
    if ops:
        single = [row for row in ops if row["truth"]["kernels"] == 1]
        summary["kernel_ops_off_by_more_than_1pct_or_64ns"] = _count_off(ops, "kernel", 0.01, 64e-9)
        summary["event_single_kernel_ops_off_by_more_than_2pct_or_250ns"] = _count_off(
            single, "event", 0.02, 250e-9
        )
    captured = [
        row for row in ops if "reason" not in row["graph"] and "graph" in truth_for_methods(row)
    ]
    if captured:
        summary["graph_ops_off_by_more_than_3pct_or_500ns"] = _count_off(
            captured, "graph", 0.03, 500e-9
        )
    stamped = traced_and_stamped(rows)
    if stamped:
        summary["kernel_vs_globaltimer_off_by_more_than_1pct_or_64ns"] = sum(
            _is_off(traced, stamps, 0.01, 64e-9) for traced, stamps in stamped.values()
        )
    spins = [row for row in rows if row["key"].startswith("spin/")]
    if len(spins) > 1:
        summary["known_duration_difference_error_ns"] = max(
            _difference_error_ns(*pair) for pair in itertools.combinations(spins, 2)
        )
    for row in rows:
        if row["key"] == "cost":
            summary |= _summarise_cost(row)
        if row["key"] == "quick":
            summary |= _summarise_quick(row["ops"])
    return summary


def _count_off(ops: list[results.Row], method: str, share: float, floor: float) -> int:
    return sum(
        _is_off(measured_seconds(row, method), truth_for_methods(row)[method], share, floor)
        for row in ops
    )


def _is_off(value: float, truth: float, share: float, floor: float) -> bool:
    # A difference of two times in seconds is not exact in binary; a picosecond is none.
    return abs(value - truth) > max(share * truth, floor) + 1e-12


def _difference_error_ns(a: results.Row, b: results.Row) -> float:
    measured = 1e9 * (kernel_seconds_finely(a) - kernel_seconds_finely(b))
    return float(round(abs(measured - (a["asked_ns"] - b["asked_ns"])), 3))


def _summarise_cost(row: results.Row) -> dict[str, float]:
    loop = statistics.median(row["loop_call_s"]) - statistics.median(row["loop_floor_s"])
    beside = row["device_bytes_free_before"] - row["device_bytes_free_least"] - row["flush_bytes"]
    summary = {
        "first_use_s": row["first_use_s"],
        "default_call_5us_kernel_s": float(statistics.median(row["default_call_s"])),
        "loop_overhead_us": 1e6 * loop,
        "memory_beside_flush_mb": beside / 1e6,
    }
    if "default_cpu_call_s" in row:  # older files lack it
        summary["default_call_5us_cpu_s"] = statistics.median(row["default_cpu_call_s"])
    if "as_is_call_s" in row:
        summary["as_is_call_5us_kernel_s"] = statistics.median(row["as_is_call_s"])
    return summary


def _summarise_quick(ops: dict[str, results.Row]) -> dict[str, float]:
    """What a call takes of a search's time, and errors beyond one tick as shares of full times."""
    seconds: list[float] = []
    errors: list[float] = []
    for row in ops.values():
        truth = statistics.median(row["full"])
        if truth <= _QUICK_UP_TO_SECONDS:
            seconds += row["quick_s"]
        for quick in row["quick"]:
            off = abs(quick - truth)
            errors.append(0.0 if off <= row["tick"] else off / truth)
    errors.sort()
    return {
        "quick_call_ms": 1e3 * statistics.mean(seconds),
        "quick_error_p95": statistics.quantiles(errors, n=20)[-1],
        "quick_error_max": errors[-1],
    }
