"""The rows of conv_match as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator

import results

from conv_match_parts.rows import (
    has_plan,
    is_to_cudnn,
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
from conv_match_parts.summary import geomean


def table(rows: list[results.Row], problems: int) -> str:
    """Markdown: a line a set of problems and dtype, host times, memory, and every mismatch.

    Args:
        rows: What was measured.
        problems: How many there are, run or not.
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
