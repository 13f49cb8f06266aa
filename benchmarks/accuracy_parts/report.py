"""The rows of accuracy.json as a table and as a picture."""

from __future__ import annotations

import statistics
from typing import Any

import results

from accuracy_parts.rows import (
    METHODS,
    NVBENCH,
    is_complete,
    is_op,
    measured_seconds,
    traced_and_stamped,
    true_seconds,
    truth_for_methods,
)

# Shapes and colours in the picture; most are of Okabe and Ito's palette, for colour-blind readers.
_METHOD_MARKS = {
    "convtime kernel": ("circle", "#0072B2"),
    "convtime event": ("square", "#56B4E9"),
    "convtime graph": ("diamond", "#009E73"),
}
_TOOL_MARKS = {
    "triton do_bench": ("triangle-up", "#D55E00"),
    "triton do_bench_cudagraph": ("triangle-down", "#E69F00"),
    "torch Timer": ("cross", "#CC79A7"),
    "events": ("triangle-left", "#808080"),
    "sync": ("triangle-right", "#A0522D"),
    NVBENCH: ("wedge", "#8856C7"),
}
_MARKS = _METHOD_MARKS | _TOOL_MARKS
TOOLS = tuple(_TOOL_MARKS)
_FLUSHING = {"triton do_bench", NVBENCH}  # compared with a cold cache, the other tools with a warm
# What a short table shows: kernels of one to hundreds of microseconds.
_EXAMPLES = (
    "relu 4Ki",
    "relu 1Mi",
    "matmul 512 bf16",
    "conv 32x64x56x56 fp16 nhwc",
    "layer_norm 4096x4096 bf16",
    "relu 64Mi",
)


def _peer_times(rows: list[results.Row]) -> dict[str, dict[str, float]]:
    """Key of an operation's row -> tool -> seconds, for what each tool gave a time for."""
    times = {
        row["key"]: {
            name: peer["seconds"] for name, peer in row["peers"].items() if "seconds" in peer
        }
        for row in rows
        if is_op(row)
    }
    for row in rows:
        if not row["key"].startswith(f"{NVBENCH}/"):
            continue
        for op, found in row["ops"].items():
            # Its isolated runs overwrite the cache, its batches do not.
            for cache, which in (("cold", "isolated"), ("warm", "batch")):
                if found.get(which) and f"{op}/{cache}" in times:
                    times[f"{op}/{cache}"][NVBENCH] = found[which]
    return times


def table(rows: list[results.Row]) -> str:
    """Markdown, a line per row: truth in µs, our methods' error, others' time over the span."""
    lines = [
        "| operation/cache | kernels | profiler: kernels (µs) | span (µs) | kernel | event | graph "
        f"| {' | '.join(TOOLS)} |",
        "|---|--:|--:|--:|" + "--:|" * (len(METHODS) + len(TOOLS)),
    ]
    peers = _peer_times(rows)
    for row in rows:
        if not is_op(row) or not is_complete(row):
            continue
        kernel, span = true_seconds(row, "kernel"), true_seconds(row, "span")
        truth = truth_for_methods(row)
        cells = [_error(row, method, truth.get(method)) for method in METHODS]
        told = peers[row["key"]]
        cells += [f"{told[tool] / span:.2f}×" if tool in told else "–" for tool in TOOLS]
        lines.append(
            f"| {row['key']} | {row['truth']['kernels']} | {1e6 * kernel:.2f} | {1e6 * span:.2f} "
            f"| {' | '.join(cells)} |"
        )
    return "\n".join([*lines, *_table_of_known(rows)])


def tools_table(rows: list[results.Row]) -> str:
    """Markdown, a line for each of a few operations: each tool with the cache as it leaves it."""
    lines = [
        "| operation | cold L2 cache | `time_op` | triton's `do_bench` "
        "| warm L2 cache | `time_op` | `torch.utils.benchmark` | two events around the call |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    known = {row["key"]: row for row in rows if is_op(row) and is_complete(row)}
    peers = _peer_times(rows)
    for name in _EXAMPLES:
        cells = [name]
        tools = {"cold": ("triton do_bench",), "warm": ("torch Timer", "events")}
        for cache, others in tools.items():
            row = known.get(f"{name}/{cache}")
            if row is None:
                cells += ["–"] * (2 + len(others))
                continue
            span, told = true_seconds(row, "span"), peers[row["key"]]
            ours = statistics.median(row["kernel"]["span"])
            cells += [f"{1e6 * span:.2f} µs", f"{ours / span:.2f}×"]
            cells += [f"{told[tool] / span:.2f}×" if tool in told else "–" for tool in others]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _error(row: results.Row, method: str, truth: float | None) -> str:
    if truth is None or "reason" in row[method]:
        return "–"
    off = measured_seconds(row, method) - truth
    # Adding 0.0 makes a positive zero of a negative one.
    return f"{round(1e9 * off):+d} ns ({round(100 * off / truth, 2) + 0.0:+.2f} %)"


def _table_of_known(rows: list[results.Row]) -> list[str]:
    stamped = traced_and_stamped(rows)
    spins = [row for row in rows if row["key"].startswith("spin/")]
    lines: list[str] = []
    if spins:
        lines += ["", "| spins for (µs) | kernel (µs) |", "|--:|--:|"]
        lines += [
            f"| {row['asked_ns'] / 1e3:g} | {1e6 * measured_seconds(row, 'kernel'):.3f} |"
            for row in spins
        ]
    if stamped:
        lines += [
            "",
            "| stamped kernel | by its stamps (µs) | kernel, less launch and exit |",
            "|---|--:|--:|",
        ]
        lines += [
            f"| {key.partition('/')[2]} | {1e6 * stamps:.3f} "
            f"| {round(1e9 * (traced - stamps)):+d} ns |"
            for key, (traced, stamps) in stamped.items()
        ]
    return lines


def _points(rows: list[results.Row]) -> dict[str, list[tuple[float, float]]]:
    """Tool -> duration in µs, and the time that the tool gave over the true one."""
    points: dict[str, list[tuple[float, float]]] = {tool: [] for tool in _MARKS}
    peers = _peer_times(rows)
    for row in rows:
        if not is_op(row) or not is_complete(row):
            continue
        span = true_seconds(row, "span")
        for method, truth in truth_for_methods(row).items():
            if "reason" not in row[method]:
                factor = measured_seconds(row, method) / truth
                points[f"convtime {method}"].append((1e6 * span, factor))
        for tool, seconds in peers[row["key"]].items():
            if row["key"].endswith("/cold") == (tool in _FLUSHING):
                points[tool].append((1e6 * span, seconds / span))
    return points


def picture(document: dict[str, Any]) -> bytes:
    """A PNG: what each tool says over what the device did, against how long that was."""
    from convtime.core.figure import Figure, columns, numbers, quantity, series_color

    points = {tool: found for tool, found in _points(document["rows"]).items() if found}
    shapes, colours = zip(*(_MARKS[tool] for tool in points), strict=True)
    factor = quantity(
        "factor",
        "time that the tool gives over the true one",
        type="log",
        axis={"values": [0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 30]},
    )
    truth = {
        "data": {"values": [{"factor": 1}]},
        "mark": {"type": "rule", "style": "ink"},
        "encoding": {"y": factor},
    }
    dots = {
        **columns(
            series=[tool for tool, found in points.items() for _ in found],
            duration=numbers([us for found in points.values() for us, _ in found]),
            factor=numbers([factor for found in points.values() for _, factor in found]),
        ),
        "mark": {"type": "point", "filled": True, "size": 45},
        "encoding": {
            "x": quantity(
                "duration",
                "true duration of the operation (µs), by torch.profiler",
                type="log",
                axis={"values": [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]},
            ),
            "y": factor,
            "color": series_color([*points], colours),
            "shape": {
                "field": "series",
                "type": "nominal",
                "title": None,
                "scale": {"domain": [*points], "range": [*shapes]},
            },
        },
    }
    facts = document["provenance"]
    return Figure(
        title=f"Error by tool and duration; {facts['gpu']}, torch {facts['torch']}",
        description="Time that each tool gives over the true one, against the true duration.",
        view={"width": 720, "height": 400, "layer": [truth, dots]},
    ).content(".png")
