"""The rows of conv_match summed up, and as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator

import results
from common.summaries import median_ratio

from conv_match_parts.rows import (
    has_plan,
    is_outlier,
    is_to_cudnn,
    memory_ratio,
    mismatches,
    passes_of,
    ratio,
    same_bits,
    same_kernels,
    same_search,
    same_second_thread,
    same_tag,
    searches_of,
)


def table(rows: list[results.Row], problems: int) -> str:
    """Markdown: a line a set of problems and dtype, host times, memory, and every mismatch.

    `problems` is how many there are, run or not.
    """
    sets: dict[str, list[results.Row]] = {}
    for row in rows:
        if "passes" in row:
            name = f"{row['key'].split()[0]}, {row['problem']['dtype']}"
            sets.setdefault(name, []).append(row)
    lines = [
        "| problems | passes to cuDNN | same plan | same kernels | same bits | same strides "
        "| same in a second thread | time convtime / PyTorch: geomean (least, most) "
        "| left to ATen: same kernels and bits |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_set_line(name, those) for name, those in sorted(sets.items())]
    lines += [
        "",
        *_thread_lines(rows),
        *_search_lines(rows),
        *_host_lines(rows),
        *_memory_lines(rows),
    ]
    refused = [row for row in rows if "error" in row]
    ran = sum("passes" in row or "searches" in row for row in rows) + len(refused)
    lines += [f"Problems not run: {problems - ran}; refused by PyTorch itself: {len(refused)}.", ""]
    found = list(mismatches(rows))
    lines += [f"Mismatches: {len(found)}.", *(f"- {line}" for line in found)]
    return "\n".join(lines)


def _set_line(name: str, rows: list[results.Row]) -> str:
    passes = [entry for _, _, entry in passes_of(rows)]
    to_cudnn = [entry for entry in passes if is_to_cudnn(entry)]
    others = [entry for entry in passes if not is_to_cudnn(entry)]
    planned = [entry for entry in to_cudnn if has_plan(entry)]
    repeating = [entry for entry in to_cudnn if entry.get("pytorch_repeats", True)]
    strides = [entry["same_strides"] for entry in to_cudnn if "same_strides" in entry]
    threads = [same_second_thread(entry) for entry in planned if "second_thread" in entry]
    ratios = [ratio(entry) for entry in to_cudnn if "error" not in entry] or [math.nan]
    alike = sum(
        same_kernels(entry) and (same_bits(entry) or not entry["pytorch_repeats"])
        for entry in others
    )
    cells = (
        name,
        str(len(to_cudnn)),
        _of(map(same_tag, planned), len(planned)),
        _of(map(same_kernels, to_cudnn), len(to_cudnn)),
        _of(map(same_bits, repeating), len(repeating)),
        _of(strides, len(strides)),
        _of(threads, len(threads)),
        f"{geomean(ratios):.4f} ({min(ratios):.3f}, {max(ratios):.3f})",
        f"{alike} of {len(others)}",
    )
    return f"| {' | '.join(cells)} |"


def _of(truths: Iterable[bool], count: int) -> str:
    return f"{sum(truths)} of {count}" if count else "—"


def _thread_lines(rows: list[results.Row]) -> Iterator[str]:
    threads = [
        entry["second_thread"] for _, _, entry in passes_of(rows) if "second_thread" in entry
    ]
    rebuilt = sum(found.get("rebuilt", False) for found in threads)
    if threads:
        yield (
            f"The second thread built {rebuilt} of {len(threads)} plans from engine and knobs, and "
            "selected the others anew, which cuDNN does not give so."
        )
        yield ""


def _search_lines(rows: list[results.Row]) -> Iterator[str]:
    searches = [entry for _, _, entry in searches_of(rows)]
    if not searches:
        return
    same = sum(map(same_search, searches))
    known = [entry for entry in searches if entry.get("pytorch_tag") is not None]
    ours = sum(map(same_tag, known))
    twice = [entry for entry in known if entry["again_tag"] is not None]
    again = sum(entry["again_tag"] == entry["pytorch_tag"] for entry in twice)
    yield (
        f"Under `cudnn.benchmark`, {same} of {len(searches)} passes have the same candidates in "
        "the same order, and with PyTorch's fastest plan the same kernels and bits. What one timed "
        f"run finds fastest is not judged: convtime's is PyTorch's in {ours} of {len(known)}, and "
        f"PyTorch's in another thread is its own in {again} of {len(twice)}. PyTorch's log "
        f"does not tell its fastest in {len(searches) - len(known)}."
    )
    yield ""


def _host_lines(rows: list[results.Row]) -> Iterator[str]:
    hosts = [row for row in rows if "host" in row]
    if not hosts:
        return
    yield "| host time of a call (µs) | medians |"
    yield "|---|---|"
    for row in hosts:
        medians = (
            f"{name} {statistics.median(samples) / 1e3:.2f}"
            for name, samples in row["host"].items()
        )
        yield f"| {row['key']} | {', '.join(medians)} |"
    yield ""


def _memory_lines(rows: list[results.Row]) -> Iterator[str]:
    for row in rows:
        if "memory" in row:
            steps = ", ".join(
                f"{step['shapes']:,}: {step['host_bytes'] / 2**20:.0f} MiB, {step['plans']:,} plans"
                for step in row["memory"]
            )
            yield f"Host memory after so many shapes: {steps}."
            yield ""


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
    hosts = [row["host"] for row in rows if "nn.Conv2d" in row.get("host", {})]
    if hosts:
        values["module_host_over_nn_conv2d"] = max(
            median_ratio(host["convtime.nn.Conv2d"], host["nn.Conv2d"]) for host in hosts
        )
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
