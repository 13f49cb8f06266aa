"""What a row of conv_match says of each pass, and everything that is not the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import results
from common.summaries import median_ratio

PASSES = ("fprop", "dgrad", "wgrad")
CUDNN_BACKENDS = ("Cudnn", "CudnnTranspose")
RATIO_LIMITS = (0.97, 1.03)
TICK_NS = 32  # of the clock that CUPTI's records are from


def passes_of(rows: list[results.Row]) -> Iterator[tuple[str, str, results.Row]]:
    """(problem's name, pass, its entry) of every pass that PyTorch ran."""
    for row in rows:
        for name, entry in row.get("passes", {}).items():
            yield row["key"], name, entry


def same_tag(entry: results.Row) -> bool:
    """Whether PyTorch's plan is known, and convtime's the same."""
    theirs = entry.get("pytorch_tag")
    return theirs is not None and theirs == entry.get("convtime_tag")


def same_kernels(entry: results.Row) -> bool:
    """Whether both launched the same kernels: names, grids, blocks, and how many of each."""
    return "error" not in entry and entry["convtime_kernels"] is None


def same_bits(entry: results.Row) -> bool:
    return bool(entry.get("bit_identical", False))


def ratio(entry: results.Row) -> float:
    """convtime's time over PyTorch's."""
    return median_ratio(entry["ns"]["convtime"], entry["ns"]["pytorch"])


def is_outlier(entry: results.Row) -> bool:
    """Whether the same plan takes another time, by more than the limits and a timer's tick."""
    if not same_kernels(entry) or (entry["backend"] in CUDNN_BACKENDS and not same_tag(entry)):
        return False  # it is a mismatch, which counts as such
    medians = [statistics.median(entry["ns"][who]) for who in ("convtime", "pytorch")]
    within = RATIO_LIMITS[0] <= ratio(entry) <= RATIO_LIMITS[1]
    return not within and abs(medians[0] - medians[1]) > TICK_NS


def memory_ratio(entry: results.Row) -> float:
    """convtime's peak memory over PyTorch's."""
    pytorch, convtime = entry["peak_bytes"]
    return float(convtime / pytorch)


def mismatches(rows: list[results.Row]) -> Iterator[str]:
    """Everything that is not the same, a line each."""
    for key, name, entry in passes_of(rows):
        where = f"{key}, {name}"
        if "error" in entry:
            yield f"{where}: {entry['error']}"
            continue
        if entry["backend"] in CUDNN_BACKENDS and not same_tag(entry):
            theirs = entry["pytorch_tag"] or entry["pytorch_unknown"]
            yield f"{where}: plan {entry['convtime_tag']}, PyTorch's: {theirs}"
        if not same_kernels(entry):
            counts = len(entry["convtime_kernels"]), len(entry["kernels"])
            yield f"{where}: other kernels ({counts[0]}, PyTorch's {counts[1]})"
        if entry["pytorch_repeats"] and not same_bits(entry):
            yield f"{where}: other bits"
        if is_outlier(entry):
            yield f"{where}: time ratio {ratio(entry):.4f} with the same plan"
        if memory_ratio(entry) > 1:
            yield f"{where}: peak memory {memory_ratio(entry):.3f} times PyTorch's"
