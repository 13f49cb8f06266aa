"""Whether convtime's convolutions are PyTorch's: plan, kernels, bits, time and memory of each pass.

A row with "passes" is a problem; its "problem" is the call, layouts and flags included. Beside the
three passes of cuDNN there are "gradients", all of them in one call, and "autograd", forward and
backward by autograd. PyTorch's plans come from its own log in a child process. Kernels are CUPTI's
records of timed calls, each [name, grid, block]; "convtime_kernels" is null where convtime's are
the same. "ns" are the samples; sample i of both is from the same round. Results are compared in
memory that was full of NaN before. "second_thread" is a call in a thread that did not select the
plan, but builds it from engine and knobs: then it is "rebuilt". Keys that begin with "mode-b" were
measured in a process whose heuristics are cuDNN's mode B.

A row with "searches" is a problem under cudnn.benchmark: "candidates" are the plans that PyTorch
timed, "convtime_candidates" is null where convtime timed the same in the same order; bits and
kernels are those of PyTorch's fastest plan on both sides. "again_tag" is what PyTorch finds in
another thread. Rows with "host" are times of the host for one call, on two sets of tensors by
turns; the row with "memory" is what many shapes leave behind.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import results
from common import summaries
from common.summaries import median_ratio

PASSES = ("fprop", "dgrad", "wgrad")
# Passes of several results: all gradients in one call, and forward and backward by autograd.
GRADIENTS, AUTOGRAD = "gradients", "autograd"
# What is measured in a process of its own, as a row's key begins. Rows of mode B are as others;
# "searches" of the others are by pass what cudnn.benchmark finds.
MODE_B, SEARCHES = "mode-b", "benchmark"
MODE_B_PROBLEMS, SEARCHED_PROBLEMS = 40, 130
PROBLEMS = 777 + MODE_B_PROBLEMS + SEARCHED_PROBLEMS  # the first of problems.all_calls()
LARGE = "large"  # the set of problems with tensors of 2**31 elements and more
CUDNN_BACKENDS = ("Cudnn", "CudnnTranspose")
RATIO_LIMITS = (0.97, 1.03)
CONFIDENCE = 0.99  # of the interval that tells an outlier from chance
TICK_NS = 32  # of the clock that CUPTI's records are from

Test = Callable[[results.Row], bool]


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
    """The rows have the details."""
    for key, name, entry in entries_of(rows, "passes"):
        if "error" in entry:
            yield f"{key}, {name}: {entry['error']}"
            continue
        found = {
            "another plan": has_plan(entry) and not same_tag(entry),
            "other kernels": not same_kernels(entry),
            "other bits": entry["pytorch_repeats"] and not same_bits(entry),
            "other strides": not entry["same_strides"],
            "other bits or kernels in a second thread": "second_thread" in entry
            and not same_second_thread(entry),
            "another time with the same plan": is_outlier(entry),
            "more memory than PyTorch's": memory_ratio(entry) > 1,
        }
        if any(found.values()):
            yield f"{key}, {name}: {', '.join(what for what, truth in found.items() if truth)}"
    for key, name, entry in entries_of(rows, "searches"):
        if not same_search(entry):
            yield f"{key}, {name}: {entry.get('error', 'another search, other bits or kernels')}"


def table(rows: list[results.Row], problems: int = PROBLEMS) -> str:
    """Markdown: a line a set of problems and dtype, host times, memory, and every mismatch.

    `problems` is how many there are, run or not.
    """
    sets: dict[str, list[results.Row]] = defaultdict(list)
    for row in rows:
        if "passes" in row:
            sets[f"{row['key'].split()[0]}, {row['problem']['dtype']}"].append(row)
    matches = summaries.markdown(
        "problems | passes to cuDNN: | same plan: | same kernels: | same bits: | same strides: "
        "| same in a second thread: | time convtime / PyTorch: geomean (least, most): "
        "| left to ATen: same kernels and bits:",
        (_cells_of_set(name, those) for name, those in sorted(sets.items())),
    )
    threads = [
        entry["second_thread"]
        for _, _, entry in entries_of(rows, "passes")
        if "second_thread" in entry
    ]
    rebuilt = sum(found.get("rebuilt", False) for found in threads)
    refused = sum("error" in row for row in rows)
    ran = sum("passes" in row or "searches" in row for row in rows) + refused
    found = list(mismatches(rows))
    paragraphs = [
        matches,
        f"The second thread built {rebuilt} of {len(threads)} plans from engine and knobs, and "
        "selected the others anew, which cuDNN does not give so.",
        *_searches(rows),
        *_host(rows),
        f"Problems not run: {problems - ran}; refused by PyTorch itself: {refused}.",
        "\n".join([f"Mismatches: {len(found)}.", *(f"- {line}" for line in found)]),
    ]
    return "\n\n".join(paragraphs)


def _cells_of_set(name: str, rows: list[results.Row]) -> tuple[object, ...]:
    passes = [entry for _, _, entry in entries_of(rows, "passes")]
    to_cudnn = [entry for entry in passes if is_to_cudnn(entry)]
    others = [entry for entry in passes if not is_to_cudnn(entry)]
    planned = [entry for entry in to_cudnn if has_plan(entry)]
    repeating = [entry for entry in to_cudnn if entry.get("pytorch_repeats", True)]
    ratios = [ratio(entry) for entry in to_cudnn if "error" not in entry] or [math.nan]
    return (
        name,
        len(to_cudnn),
        _count(same_tag, planned),
        _count(same_kernels, to_cudnn),
        _count(same_bits, repeating),
        _count(lambda entry: entry.get("same_strides", False), to_cudnn),
        _count(same_second_thread, planned),
        f"{geomean(ratios):.4f} ({min(ratios):.3f}, {max(ratios):.3f})",
        _count(computes_alike, others, none="0 of 0"),
    )


def _count(is_so: Test, entries: list[results.Row], none: str = "—") -> str:
    return f"{sum(map(is_so, entries))} of {len(entries)}" if entries else none


def _searches(rows: list[results.Row]) -> Iterator[str]:
    searches = [entry for _, _, entry in entries_of(rows, "searches")]
    if not searches:
        return
    known = [entry for entry in searches if entry.get("pytorch_tag") is not None]
    twice = [entry for entry in known if entry["again_tag"] is not None]
    again = sum(entry["again_tag"] == entry["pytorch_tag"] for entry in twice)
    yield (
        f"Under `cudnn.benchmark`, {sum(map(same_search, searches))} of {len(searches)} "
        "passes have the same candidates in the same order, and with PyTorch's fastest plan the "
        "same kernels and bits. What one timed run finds fastest is not judged: convtime's is "
        f"PyTorch's in {sum(map(same_tag, known))} of {len(known)}, and PyTorch's in "
        f"another thread is its own in {again} of {len(twice)}. PyTorch's log does not tell its "
        f"fastest in {len(searches) - len(known)}."
    )


def _host(rows: list[results.Row]) -> Iterator[str]:
    lines = []
    for row in (row for row in rows if "host" in row):
        medians = {name: statistics.median(found) / 1e3 for name, found in row["host"].items()}
        cells = ", ".join(f"{name} {median:.2f}" for name, median in medians.items())
        lines.append((row["key"], cells))
    if lines:
        yield summaries.markdown("host time of a call (µs) | medians", lines)
    for row in rows:
        if "memory" in row:
            steps = ", ".join(
                f"{step['shapes']:,}: {step['host_bytes'] / 2**20:.0f} MiB, {step['plans']:,} plans"
                for step in row["memory"]
            )
            yield f"Host memory after so many shapes: {steps}."


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """From the rows; a name that they do not yield is left out, and so missed.

    Passes that PyTorch gives to cuDNN are what is counted. The others, which both sides leave to
    ATen, have shares of their own, and the lesser share counts.
    """
    passes = [entry for _, _, entry in entries_of(rows, "passes")]
    measured = [entry for entry in passes if "error" not in entry]
    values: dict[str, float] = {"problems": sum(map(is_to_cudnn, passes))}
    if measured:
        planned = [entry for entry in passes if has_plan(entry)]
        repeating = [entry for entry in passes if entry.get("pytorch_repeats", True)]
        values |= {
            "tag_match": _share(map(same_tag, planned)),
            "kernels_match": _least_share(same_kernels, passes),
            "bit_identical_where_pytorch_repeats": _least_share(same_bits, repeating),
            "time_ratio_outliers": sum(map(is_outlier, measured)),
            "peak_memory_ratio_max": max(map(memory_ratio, measured)),
            "strides_match": _share(entry.get("same_strides", False) for entry in passes),
            "second_thread_match": _share(map(same_second_thread, planned)),
        }
    by_pass: dict[str, list[float]] = defaultdict(list)
    for _, name, entry in entries_of(rows, "passes"):
        if "error" not in entry and is_to_cudnn(entry):
            by_pass[name].append(ratio(entry))
    geomeans = list(map(geomean, by_pass.values()))
    searches = [same_search(entry) for _, _, entry in entries_of(rows, "searches")]
    hosts = [row["host"] for row in rows if "nn.Conv2d" in row.get("host", {})]
    return values | summaries.known(
        time_ratio_geomean_min=min(geomeans, default=None),
        time_ratio_geomean_max=max(geomeans, default=None),
        benchmark_passes=sum(searches) if searches else None,
        host_added_over_f_conv2d=summaries.most(
            _host_added(row) for row in rows if "F.conv2d" in row.get("host", {})
        ),
        module_host_over_nn_conv2d=summaries.most(
            median_ratio(host["convtime.nn.Conv2d"], host["nn.Conv2d"]) for host in hosts
        ),
    )


def _least_share(is_same: Test, passes: list[results.Row]) -> float:
    """The share among cuDNN's passes, or among the others where that is less."""
    return min(
        _share(is_same(entry) for entry in passes if is_to_cudnn(entry) == to_cudnn)
        for to_cudnn in (True, False)
    )


def _share(truths: Iterable[bool]) -> float:
    share = summaries.share(truths)
    return 1.0 if share is None else share


def geomean(ratios: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def _host_added(row: results.Row) -> float:
    """What convtime's call adds to what both have to do, over what F.conv2d adds.

    That is cuDNN's execute, and the launch of the kernel that adds the bias where there is one.
    """
    names = "floor with bias" if " bias" in row["key"] else "floor", "convtime", "F.conv2d"
    floor, ours, theirs = (statistics.median(row["host"][name]) for name in names)
    return float((ours - floor) / (theirs - floor))
