"""The rows of conv_match summed up, and as a table."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import results
from common import summaries

from conv_match_parts import rows as entries


def table(rows: list[results.Row], problems: int) -> str:
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
    refused = sum("error" in row for row in rows)
    ran = sum("passes" in row or "searches" in row for row in rows) + refused
    found = list(entries.mismatches(rows))
    paragraphs = [
        matches,
        *_threads(rows),
        *_searches(rows),
        *_hosts(rows),
        *_memory(rows),
        f"Problems not run: {problems - ran}; refused by PyTorch itself: {refused}.",
        "\n".join([f"Mismatches: {len(found)}.", *(f"- {line}" for line in found)]),
    ]
    return "\n\n".join(paragraphs)


def _cells_of_set(name: str, rows: list[results.Row]) -> tuple[object, ...]:
    passes = [entry for _, _, entry in entries.entries_of(rows, "passes")]
    to_cudnn = [entry for entry in passes if entries.is_to_cudnn(entry)]
    others = [entry for entry in passes if not entries.is_to_cudnn(entry)]
    planned = [entry for entry in to_cudnn if entries.has_plan(entry)]
    repeating = [entry for entry in to_cudnn if entry.get("pytorch_repeats", True)]
    strides = [entry["same_strides"] for entry in to_cudnn if "same_strides" in entry]
    threads = [entries.same_second_thread(entry) for entry in planned if "second_thread" in entry]
    ratios = [entries.ratio(entry) for entry in to_cudnn if "error" not in entry] or [math.nan]
    return (
        name,
        len(to_cudnn),
        _of(map(entries.same_tag, planned), len(planned)),
        _of(map(entries.same_kernels, to_cudnn), len(to_cudnn)),
        _of(map(entries.same_bits, repeating), len(repeating)),
        _of(strides, len(strides)),
        _of(threads, len(threads)),
        f"{geomean(ratios):.4f} ({min(ratios):.3f}, {max(ratios):.3f})",
        f"{sum(map(entries.computes_alike, others))} of {len(others)}",
    )


def _of(truths: Iterable[bool], count: int) -> str:
    return f"{sum(truths)} of {count}" if count else "—"


def _threads(rows: list[results.Row]) -> Iterator[str]:
    passes = entries.entries_of(rows, "passes")
    threads = [entry["second_thread"] for _, _, entry in passes if "second_thread" in entry]
    if threads:
        yield (
            f"The second thread built {sum(found.get('rebuilt', False) for found in threads)} of "
            f"{len(threads)} plans from engine and knobs, and selected the others anew, which "
            "cuDNN does not give so."
        )


def _searches(rows: list[results.Row]) -> Iterator[str]:
    searches = [entry for _, _, entry in entries.entries_of(rows, "searches")]
    if not searches:
        return
    known = [entry for entry in searches if entry.get("pytorch_tag") is not None]
    twice = [entry for entry in known if entry["again_tag"] is not None]
    again = sum(entry["again_tag"] == entry["pytorch_tag"] for entry in twice)
    yield (
        f"Under `cudnn.benchmark`, {sum(map(entries.same_search, searches))} of {len(searches)} "
        "passes have the same candidates in the same order, and with PyTorch's fastest plan the "
        "same kernels and bits. What one timed run finds fastest is not judged: convtime's is "
        f"PyTorch's in {sum(map(entries.same_tag, known))} of {len(known)}, and PyTorch's in "
        f"another thread is its own in {again} of {len(twice)}. PyTorch's log does not tell its "
        f"fastest in {len(searches) - len(known)}."
    )


def _hosts(rows: list[results.Row]) -> Iterator[str]:
    lines = [
        (
            row["key"],
            ", ".join(
                f"{name} {statistics.median(samples) / 1e3:.2f}"
                for name, samples in row["host"].items()
            ),
        )
        for row in rows
        if "host" in row
    ]
    if lines:
        yield summaries.markdown("host time of a call (µs) | medians", lines)


def _memory(rows: list[results.Row]) -> Iterator[str]:
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
    named = [(name, entry) for _, name, entry in entries.entries_of(rows, "passes")]
    passes = [entry for _, entry in named]
    measured = [entry for entry in passes if "error" not in entry]
    values: dict[str, float] = {"problems": sum(map(entries.is_to_cudnn, passes))}
    if measured:
        planned = [entry for entry in passes if entries.has_plan(entry)]
        repeating = [entry for entry in passes if entry.get("pytorch_repeats", True)]
        values |= {
            "tag_match": _share(map(entries.same_tag, planned)),
            "kernels_match": _least_share(entries.same_kernels, passes),
            "bit_identical_where_pytorch_repeats": _least_share(entries.same_bits, repeating),
            "time_ratio_outliers": sum(map(entries.is_outlier, measured)),
            "peak_memory_ratio_max": max(map(entries.memory_ratio, measured)),
            "strides_match": _share(entry.get("same_strides", False) for entry in passes),
            "second_thread_match": _share(map(entries.same_second_thread, planned)),
        }
    by_pass: dict[str, list[float]] = defaultdict(list)
    for name, entry in named:
        if "error" not in entry and entries.is_to_cudnn(entry):
            by_pass[name].append(entries.ratio(entry))
    if geomeans := list(map(geomean, by_pass.values())):
        values["time_ratio_geomean_min"] = min(geomeans)
        values["time_ratio_geomean_max"] = max(geomeans)
    if searches := entries.entries_of(rows, "searches"):
        values["benchmark_passes"] = sum(entries.same_search(entry) for _, _, entry in searches)
    hosts = [row["host"] for row in rows if "nn.Conv2d" in row.get("host", {})]
    return values | summaries.known(
        host_added_over_f_conv2d=summaries.most(
            _host_added(row) for row in rows if "F.conv2d" in row.get("host", {})
        ),
        module_host_over_nn_conv2d=summaries.most(
            summaries.median_ratio(host["convtime.nn.Conv2d"], host["nn.Conv2d"]) for host in hosts
        ),
    )


def _least_share(is_same: Callable[[results.Row], bool], passes: list[results.Row]) -> float:
    """The share among cuDNN's passes, or among the others where that is less."""
    return min(
        _share(is_same(entry) for entry in passes if entries.is_to_cudnn(entry) == to_cudnn)
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
