"""What the rows of conv_match are judged by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import results
from common.summaries import median_ratio

from conv_match_parts.rows import (
    CUDNN_BACKENDS,
    is_outlier,
    memory_ratio,
    passes_of,
    ratio,
    same_bits,
    same_kernels,
    same_tag,
)


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """From the rows; a name that they do not yield is left out, and so missed."""
    passes = [entry for _, _, entry in passes_of(rows)]
    values: dict[str, float] = {"problems": len(passes)}
    measured = [entry for entry in passes if "error" not in entry]
    if measured:
        with_plans = [entry for entry in passes if entry["backend"] in CUDNN_BACKENDS]
        repeating = [entry for entry in passes if entry.get("pytorch_repeats", True)]
        by_pass: dict[str, list[float]] = {}
        for _, name, entry in passes_of(rows):
            if "error" not in entry:
                by_pass.setdefault(name, []).append(ratio(entry))
        geomeans = [geomean(ratios) for ratios in by_pass.values()]
        values |= {
            "tag_match": _share(map(same_tag, with_plans)),
            "kernels_match": _share(map(same_kernels, passes)),
            "bit_identical_where_pytorch_repeats": _share(map(same_bits, repeating)),
            "time_ratio_geomean_min": min(geomeans),
            "time_ratio_geomean_max": max(geomeans),
            "time_ratio_outliers": sum(map(is_outlier, measured)),
            "peak_memory_ratio_max": max(map(memory_ratio, measured)),
        }
    added = [_host_added(row) for row in rows if "floor" in row.get("host", {})]
    if added:
        values["host_added_over_f_conv2d"] = max(added)
    modules = [_host_ratio(row) for row in rows if "nn.Conv2d" in row.get("host", {})]
    if modules:
        values["module_host_over_nn_conv2d"] = max(modules)
    return values


def _share(truths: Iterable[bool]) -> float:
    found = list(truths)
    return sum(found) / len(found) if found else 1.0


def geomean(ratios: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def _host_added(row: results.Row) -> float:
    """What convtime's call adds to cuDNN's execute, over what F.conv2d adds."""
    floor, ours, theirs = (
        statistics.median(row["host"][name]) for name in ("floor", "convtime", "F.conv2d")
    )
    return float((ours - floor) / (theirs - floor))


def _host_ratio(row: results.Row) -> float:
    return median_ratio(row["host"]["convtime.nn.Conv2d"], row["host"]["nn.Conv2d"])
