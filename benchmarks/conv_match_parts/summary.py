"""What the rows of conv_match are judged by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable

import results
from common.summaries import median_ratio

from conv_match_parts.rows import (
    has_plan,
    is_outlier,
    is_to_cudnn,
    memory_ratio,
    passes_of,
    ratio,
    same_bits,
    same_kernels,
    same_search,
    same_second_thread,
    same_tag,
    searches_of,
)


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """From the rows; a name that they do not yield is left out, and so missed.

    Passes that PyTorch gives to cuDNN are what is counted. The others, which both sides leave to
    ATen, have shares of their own, and the lesser share counts.
    """
    passes = [entry for _, _, entry in passes_of(rows)]
    measured = [entry for entry in passes if "error" not in entry]
    values: dict[str, float] = {"problems": sum(map(is_to_cudnn, passes))}
    if measured:
        repeating = [entry for entry in passes if entry.get("pytorch_repeats", True)]
        values |= {
            "tag_match": _share(map(same_tag, filter(has_plan, passes))),
            "kernels_match": _least_share(same_kernels, passes),
            "bit_identical_where_pytorch_repeats": _least_share(same_bits, repeating),
            "time_ratio_outliers": sum(map(is_outlier, measured)),
            "peak_memory_ratio_max": max(map(memory_ratio, measured)),
        }
    by_pass: dict[str, list[float]] = {}
    for _, name, entry in passes_of(rows):
        if "error" not in entry and is_to_cudnn(entry):
            by_pass.setdefault(name, []).append(ratio(entry))
    if by_pass:
        geomeans = [geomean(ratios) for ratios in by_pass.values()]
        values["time_ratio_geomean_min"] = min(geomeans)
        values["time_ratio_geomean_max"] = max(geomeans)
    # Rows that were measured before these were looked at do not have them.
    if any("same_strides" in entry for entry in measured):
        values["strides_match"] = _share(entry.get("same_strides", False) for entry in passes)
    if any("second_thread" in entry for entry in measured):
        values["second_thread_match"] = _share(map(same_second_thread, filter(has_plan, passes)))
    searches = [entry for _, _, entry in searches_of(rows)]
    if searches:
        values["benchmark_passes"] = sum(map(same_search, searches))
    return values | _host_values(rows)


def _host_values(rows: list[results.Row]) -> dict[str, float]:
    values: dict[str, float] = {}
    added = [_host_added(row) for row in rows if "F.conv2d" in row.get("host", {})]
    answered = [ratio for ratio in added if ratio is not None]
    if added and len(answered) == len(added):
        values["host_added_over_f_conv2d"] = max(answered)
    modules = [_host_ratio(row) for row in rows if "nn.Conv2d" in row.get("host", {})]
    if modules:
        values["module_host_over_nn_conv2d"] = max(modules)
    return values


def _least_share(is_same: Callable[[results.Row], bool], entries: list[results.Row]) -> float:
    """The share among cuDNN's passes, or among the others where that is less."""
    groups = [
        [entry for entry in entries if is_to_cudnn(entry) == to_cudnn] for to_cudnn in (True, False)
    ]
    return min(_share(map(is_same, group)) for group in groups)


def _share(truths: Iterable[bool]) -> float:
    found = list(truths)
    return sum(found) / len(found) if found else 1.0


def geomean(ratios: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def _host_added(row: results.Row) -> float | None:
    """What convtime's call adds to what both have to do, over what F.conv2d adds; if known.

    That is cuDNN's execute, and the launch of the kernel that adds the bias where there is one.
    """
    host = row["host"]
    floor_name = "floor with bias" if " bias" in row["key"] else "floor"
    if floor_name not in host:
        return None
    floor, ours, theirs = (
        statistics.median(host[name]) for name in (floor_name, "convtime", "F.conv2d")
    )
    return float((ours - floor) / (theirs - floor))


def _host_ratio(row: results.Row) -> float:
    return median_ratio(row["host"]["convtime.nn.Conv2d"], row["host"]["nn.Conv2d"])
