"""What a row of conv_match says of each pass, and everything that is not the same."""

import math
import statistics
from collections.abc import Iterator

import results
from common.summaries import median_ratio

PASSES = ("fprop", "dgrad", "wgrad")
# Passes of several results: all gradients in one call, and forward and backward by autograd.
GRADIENTS, AUTOGRAD = "gradients", "autograd"
# What is measured in a process of its own, as a row's key begins. Rows of mode B are as others;
# "searches" of the others are by pass what cudnn.benchmark finds.
MODE_B, SEARCHES = "mode-b", "benchmark"
MODE_B_PROBLEMS, SEARCHED_PROBLEMS = 40, 130
LARGE = "large"  # the set of problems with tensors of 2**31 elements and more
CUDNN_BACKENDS = ("Cudnn", "CudnnTranspose")
RATIO_LIMITS = (0.97, 1.03)
CONFIDENCE = 0.99  # of the interval that tells an outlier from chance
TICK_NS = 32  # of the clock that CUPTI's records are from


def entries_of(rows: list[results.Row], place: str) -> list[tuple[str, str, results.Row]]:
    """(problem's name, pass, its entry) of all "passes" that PyTorch ran, or of "searches"."""
    return [(row["key"], name, entry) for row in rows for name, entry in row.get(place, {}).items()]


def is_to_cudnn(entry: results.Row) -> bool:
    """Whether PyTorch gives the pass to cuDNN; the others are ATen's own kernels on both sides."""
    return entry["backend"] in CUDNN_BACKENDS


def has_plan(entry: results.Row) -> bool:
    """Whether there is one plan that both sides can be asked for."""
    return is_to_cudnn(entry) and "pytorch_tag" in entry


def same_tag(entry: results.Row) -> bool:
    """Whether PyTorch's plan is known, and convtime's the same."""
    theirs = entry.get("pytorch_tag")
    return theirs is not None and theirs == entry.get("convtime_tag")


def same_kernels(entry: results.Row) -> bool:
    """Whether both launched the same kernels: names, grids, blocks, and how many of each."""
    return "error" not in entry and entry["convtime_kernels"] is None


def same_bits(entry: results.Row) -> bool:
    return bool(entry.get("bit_identical", False))


def computes_alike(entry: results.Row) -> bool:
    """Whether both launched the same kernels, and got the same bits where PyTorch repeats its."""
    return same_kernels(entry) and (same_bits(entry) or not entry["pytorch_repeats"])


def same_second_thread(entry: results.Row) -> bool:
    """Whether another thread runs the same plan: same kernels, same bits.

    It builds the plan from engine and knobs, or selects it anew where cuDNN does not give it so.
    """
    return computes_alike(entry.get("second_thread", {"error": "it was not run"}))


def same_search(entry: results.Row) -> bool:
    """Whether both timed the same plans in the same order, and compute alike with PyTorch's best.

    Which plan is the fastest is a matter of one timed run, and not compared.
    """
    return (
        entry.get("pytorch_tag") is not None
        and entry["convtime_candidates"] is None
        and computes_alike(entry)
    )


def tells_of_a_lost_gpu(text: str) -> bool:
    """Whether an error came from CUDA itself, after which every later call of a process fails."""
    return "CUDA error" in text or "CUDA call failed" in text


def ratio(entry: results.Row) -> float:
    return median_ratio(entry["ns"]["convtime"], entry["ns"]["pytorch"])


def is_outside(entry: results.Row) -> bool:
    """Whether the same plan takes another time, by more than the limits and a timer's tick."""
    if not same_kernels(entry) or (has_plan(entry) and not same_tag(entry)):
        return False  # it is a mismatch, which counts as such
    ours, theirs = (statistics.median(entry["ns"][who]) for who in ("convtime", "pytorch"))
    within = RATIO_LIMITS[0] <= ratio(entry) <= RATIO_LIMITS[1]
    return not within and abs(ours - theirs) > TICK_NS


def is_outlier(entry: results.Row) -> bool:
    """Whether the ratio's interval is outside of the limits, too.

    The times of some kernels range over a factor of two, and so do ratios of them.
    """
    if not is_outside(entry):
        return False
    ours, theirs = entry["ns"]["convtime"], entry["ns"]["pytorch"]
    ratios: list[float] = sorted(our / their for our, their in zip(ours, theirs, strict=True))
    # The order statistics between which the median lies, by the sign test.
    width = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(len(ratios))
    first = max(0, math.floor((len(ratios) - width) / 2))
    return ratios[first] > RATIO_LIMITS[1] or ratios[-1 - first] < RATIO_LIMITS[0]


def memory_ratio(entry: results.Row) -> float:
    pytorch, convtime = entry["peak_bytes"]
    return float(convtime / pytorch)


def mismatches(rows: list[results.Row]) -> Iterator[str]:
    """Everything that is not the same, a line each."""
    for key, name, entry in entries_of(rows, "passes"):
        where = f"{key}, {name}"
        if "error" in entry:
            yield f"{where}: {entry['error']}"
            continue
        if has_plan(entry) and not same_tag(entry):
            theirs = entry["pytorch_tag"] or entry["pytorch_unknown"]
            yield f"{where}: plan {entry['convtime_tag']}, PyTorch's: {theirs}"
        if not same_kernels(entry):
            ours, theirs = len(entry["convtime_kernels"]), len(entry["kernels"])
            yield f"{where}: other kernels ({ours}, PyTorch's {theirs})"
        if entry["pytorch_repeats"] and not same_bits(entry):
            yield f"{where}: other bits"
        if not entry["same_strides"]:
            yield f"{where}: other strides"
        if "second_thread" in entry and not same_second_thread(entry):
            yield f"{where}: other bits or kernels in a second thread"
        if is_outlier(entry):
            yield f"{where}: time ratio {ratio(entry):.4f} with the same plan"
        if memory_ratio(entry) > 1:
            yield f"{where}: peak memory {memory_ratio(entry):.3f} times PyTorch's"
    for key, name, entry in entries_of(rows, "searches"):
        if not same_search(entry):
            yield f"{key}, {name}: {_why_not_same_search(entry)}"


def _why_not_same_search(entry: results.Row) -> str:
    if "error" in entry:
        return str(entry["error"])
    if entry["pytorch_tag"] is None:
        return f"PyTorch's plan is not known: {entry['pytorch_unknown']}"
    if entry["convtime_candidates"] is not None:
        ours, theirs = (", ".join(entry[of]) for of in ("convtime_candidates", "candidates"))
        return f"timed {ours}, PyTorch: {theirs}"
    return f"other bits or kernels with {entry['pytorch_tag']}"
