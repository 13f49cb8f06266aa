"""The rows of conv_match as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

import results

from conv_match_parts.rows import (
    CUDNN_BACKENDS,
    mismatches,
    passes_of,
    ratio,
    same_bits,
    same_kernels,
    same_tag,
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
        "| problems | passes | to cuDNN | same plan | same kernels | same bits | "
        "time convtime / PyTorch: geomean (least, most) |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, those in sorted(sets.items()):
        passes = [entry for _, _, entry in passes_of(those)]
        plans = [entry for entry in passes if entry["backend"] in CUDNN_BACKENDS]
        repeating = [entry for entry in passes if entry.get("pytorch_repeats", True)]
        ratios = [ratio(entry) for entry in passes if "error" not in entry] or [math.nan]
        lines.append(
            f"| {name} | {len(passes)} | {len(plans)} | {sum(map(same_tag, plans))} "
            f"| {sum(map(same_kernels, passes))} | {sum(map(same_bits, repeating))} of "
            f"{len(repeating)} | {geomean(ratios):.4f} ({min(ratios):.3f}, {max(ratios):.3f}) |"
        )
    lines += ["", *_host_lines(rows), *_memory_lines(rows)]
    refused = [row for row in rows if "error" in row]
    ran = sum("passes" in row for row in rows) + len(refused)
    lines += [f"Problems not run: {problems - ran}; refused by PyTorch itself: {len(refused)}.", ""]
    found = list(mismatches(rows))
    lines += [f"Mismatches: {len(found)}.", *(f"- {line}" for line in found)]
    return "\n".join(lines)


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
