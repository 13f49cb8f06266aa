"""The rows of accuracy.json summed up, as tables and as a picture."""

import itertools
import statistics
from collections.abc import Collection, Sequence
from typing import Any

import results
from common import summaries

from accuracy_parts.rows import (
    METHODS,
    NVBENCH,
    is_complete,
    is_op,
    kernel_seconds_finely,
    measured_seconds,
    traced_and_stamped,
    true_seconds,
    truth_for_methods,
)

# Shapes and colours in the picture; most are of Okabe and Ito's palette, for colour-blind readers.
_TOOL_MARKS = {
    "triton do_bench": ("triangle-up", "#D55E00"),
    "triton do_bench_cudagraph": ("triangle-down", "#E69F00"),
    "torch Timer": ("cross", "#CC79A7"),
    "events": ("triangle-left", "#808080"),
    "sync": ("triangle-right", "#A0522D"),
    NVBENCH: ("wedge", "#8856C7"),
}
_MARKS = {
    "convtime kernel": ("circle", "#0072B2"),
    "convtime event": ("square", "#56B4E9"),
    "convtime graph": ("diamond", "#009E73"),
    **_TOOL_MARKS,
}
TOOLS = tuple(_TOOL_MARKS)
_QUICK_UP_TO_SECONDS = 200e-6  # longer operations are called five times, however long that takes
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
    times = {
        row["key"]: {
            name: peer["seconds"] for name, peer in row["peers"].items() if "seconds" in peer
        }
        for row in filter(is_op, rows)
    }
    for row in _of(rows, NVBENCH):
        for op, found in row["ops"].items():
            # Its isolated runs overwrite the cache, its batches do not.
            for cache, which in (("cold", "isolated"), ("warm", "batch")):
                if found.get(which) and f"{op}/{cache}" in times:
                    times[f"{op}/{cache}"][NVBENCH] = found[which]
    return times


def table(rows: list[results.Row]) -> str:
    peers = _peer_times(rows)
    lines = []
    for row in filter(_is_shown, rows):
        kernel, span = true_seconds(row, "kernel"), true_seconds(row, "span")
        truth = truth_for_methods(row)
        cells = [row["key"], row["truth"]["kernels"], f"{1e6 * kernel:.2f}", f"{1e6 * span:.2f}"]
        cells += [_error(row, method, truth.get(method)) for method in METHODS]
        lines.append(cells + [_factor(peers[row["key"]], tool, span) for tool in TOOLS])
    header = "operation/cache | kernels: | profiler: kernels (µs): | span (µs):"
    header += "".join(f" | {name}:" for name in (*METHODS, *TOOLS))
    return "\n".join([summaries.markdown(header, lines), *_tables_of_known(rows)])


def _is_shown(row: results.Row) -> bool:
    return is_op(row) and is_complete(row)


def _factor(told: dict[str, float], tool: str, span: float) -> str:
    return f"{told[tool] / span:.2f}×" if tool in told else "–"


def tools_table(rows: list[results.Row]) -> str:
    known = summaries.by_key(row for row in rows if _is_shown(row))
    peers = _peer_times(rows)
    lines = []
    for name in _EXAMPLES:
        cells = [name]
        for cache, others in (("cold", ("triton do_bench",)), ("warm", ("torch Timer", "events"))):
            if row := known.get(f"{name}/{cache}"):
                span = true_seconds(row, "span")
                ours = statistics.median(row["kernel"]["span"])
                cells += [f"{1e6 * span:.2f} µs", f"{ours / span:.2f}×"]
                cells += [_factor(peers[row["key"]], tool, span) for tool in others]
            else:
                cells += ["–"] * (2 + len(others))
        lines.append(cells)
    return summaries.markdown(
        "operation | cold L2 cache: | `time_op`: | triton's `do_bench`: | warm L2 cache: "
        "| `time_op`: | `torch.utils.benchmark`: | two events around the call:",
        lines,
    )


def _error(row: results.Row, method: str, truth: float | None) -> str:
    if truth is None or "reason" in row[method]:
        return "–"
    off = measured_seconds(row, method) - truth
    # Adding 0.0 makes a positive zero of a negative one.
    return f"{round(1e9 * off):+d} ns ({round(100 * off / truth, 2) + 0.0:+.2f} %)"


def _tables_of_known(rows: list[results.Row]) -> list[str]:
    spins = [
        (f"{row['asked_ns'] / 1e3:g}", f"{1e6 * measured_seconds(row, 'kernel'):.3f}")
        for row in _of(rows, "spin")
    ]
    stamped = [
        (key.partition("/")[2], f"{1e6 * stamps:.3f}", f"{round(1e9 * (traced - stamps)):+d} ns")
        for key, (traced, stamps) in traced_and_stamped(rows).items()
    ]
    tables: dict[str, Sequence[tuple[str, ...]]] = {
        "spins for (µs): | kernel (µs):": spins,
        "stamped kernel | by its stamps (µs): | kernel, less launch and exit:": stamped,
    }
    return ["\n" + summaries.markdown(header, lines) for header, lines in tables.items() if lines]


def _of(rows: list[results.Row], subject: str) -> list[results.Row]:
    return [row for row in rows if row["key"].startswith(f"{subject}/")]


def _points(rows: list[results.Row]) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {tool: [] for tool in _MARKS}
    peers = _peer_times(rows)
    for row in filter(_is_shown, rows):
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
    from convtime.view.figure import Figure, columns, numbers, quantity, series_color

    points = {tool: found for tool, found in _points(document["rows"]).items() if found}
    shapes, colours = zip(*(_MARKS[tool] for tool in points), strict=True)
    durations, factors = zip(*(point for found in points.values() for point in found), strict=True)
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
            duration=numbers(durations),
            factor=numbers(factors),
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
    ).content(".svg")


def summarise(rows: list[results.Row]) -> dict[str, float]:
    ops = list(filter(_is_shown, rows))
    single = [row for row in ops if row["truth"]["kernels"] == 1]
    captured = [
        row for row in ops if "reason" not in row["graph"] and "graph" in truth_for_methods(row)
    ]
    stamped = traced_and_stamped(rows).values()
    spins = itertools.combinations(_of(rows, "spin"), 2)
    by_key = summaries.by_key(rows)
    return {
        **summaries.known(
            ops=len(ops),
            kernel_ops_off_by_more_than_1pct_or_64ns=_count_off(
                _found_and_true(ops, "kernel"), 0.01, 64e-9
            ),
            event_single_kernel_ops_off_by_more_than_2pct_or_250ns=_count_off(
                _found_and_true(single, "event"), 0.02, 250e-9
            ),
            graph_ops_off_by_more_than_3pct_or_500ns=_count_off(
                _found_and_true(captured, "graph"), 0.03, 500e-9
            ),
            kernel_vs_globaltimer_off_by_more_than_1pct_or_64ns=_count_off(stamped, 0.01, 64e-9),
            known_duration_difference_error_ns=summaries.most(
                itertools.starmap(_difference_error_ns, spins)
            ),
        ),
        **(_summarise_cost(by_key["cost"]) if "cost" in by_key else {}),
        **(_summarise_quick(by_key["quick"]["ops"]) if "quick" in by_key else {}),
    }


def _found_and_true(ops: list[results.Row], method: str) -> list[tuple[float, float]]:
    return [(measured_seconds(row, method), truth_for_methods(row)[method]) for row in ops]


def _count_off(times: Collection[tuple[float, float]], share: float, floor: float) -> int | None:
    # A difference of two times in seconds is not exact in binary; a picosecond is none.
    off = [abs(value - truth) > max(share * truth, floor) + 1e-12 for value, truth in times]
    return sum(off) if off else None


def _difference_error_ns(a: results.Row, b: results.Row) -> float:
    measured = 1e9 * (kernel_seconds_finely(a) - kernel_seconds_finely(b))
    return float(round(abs(measured - (a["asked_ns"] - b["asked_ns"])), 3))


def _summarise_cost(row: results.Row) -> dict[str, float]:
    loop = statistics.median(row["loop_call_s"]) - statistics.median(row["loop_floor_s"])
    beside = row["device_bytes_free_before"] - row["device_bytes_free_least"] - row["flush_bytes"]
    return {
        "first_use_s": row["first_use_s"],
        "default_call_5us_kernel_s": float(statistics.median(row["default_call_s"])),
        "loop_overhead_us": 1e6 * loop,
        "memory_beside_flush_mb": beside / 1e6,
        "default_call_5us_cpu_s": statistics.median(row["default_cpu_call_s"]),
        "as_is_call_5us_kernel_s": statistics.median(row["as_is_call_s"]),
    }


def _summarise_quick(ops: dict[str, results.Row]) -> dict[str, float]:
    """What a call takes of a search's time, and errors beyond one tick as shares of full times."""
    true = [(row, statistics.median(row["full"])) for row in ops.values()]
    seconds = [
        each for row, truth in true if truth <= _QUICK_UP_TO_SECONDS for each in row["quick_s"]
    ]
    errors = sorted(
        0.0 if abs(quick - truth) <= row["tick"] else abs(quick - truth) / truth
        for row, truth in true
        for quick in row["quick"]
    )
    return {
        "quick_call_ms": 1e3 * statistics.mean(seconds),
        "quick_error_p95": statistics.quantiles(errors, n=20)[-1],
        "quick_error_max": errors[-1],
    }
