"""How far each method of convtime, and other tools, are from what the device itself did.

The truth of an operation is torch.profiler's (CUPTI's, through kineto): the time in which at least
one of its kernels ran, and the span from the first one's start to the last one's end. Truth and
methods alternate, with as many calls each and as much rest before. Kernels that spin for a known
time, and kernels that stamp the GPU's own clock, check the traced times without a tracer. Times are
compared by the median over the passes of each pass's median.

Tracing slows kernels of many blocks down. Method event, which does not trace, is therefore compared
with the truth less what tracing adds: by how much two events around the same call are further apart
with the profiler on, beyond what they are around a kernel of fixed duration. Method graph is
compared with stamps of the device's clock in a graph, less what they say too much of such a kernel:
with a cold cache around the call, with a warm one around one call and around several back to back.
"""

import itertools
import statistics
from collections.abc import Collection, Iterable
from typing import Any, Literal

import results
from common import summaries

CACHES: tuple[Literal["cold", "warm"], ...] = ("cold", "warm")
METHODS: tuple[Literal["kernel", "event", "graph"], ...] = ("kernel", "event", "graph")
# Kernels that spin for so long tell what lies between the stamps and the traced start and end, for
# others of the same grid, or of more blocks than fit on the device at a time.
STAMPED_REFERENCE_NS = 1_024
# Shapes and colours in the picture; most are of Okabe and Ito's palette, for colour-blind readers.
_MARKS = {
    "convtime kernel": ("circle", "#0072B2"),
    "convtime event": ("square", "#56B4E9"),
    "convtime graph": ("diamond", "#009E73"),
    "triton do_bench": ("triangle-up", "#D55E00"),
    "triton do_bench_cudagraph": ("triangle-down", "#E69F00"),
    "torch Timer": ("cross", "#CC79A7"),
    "events": ("triangle-left", "#808080"),
    "sync": ("triangle-right", "#A0522D"),
}
TOOLS = tuple(_MARKS)[len(METHODS) :]
_QUICK_UP_TO_SECONDS = 200e-6  # longer operations are called five times, however long that takes
# What a short table shows: kernels of one to hundreds of microseconds.
_EXAMPLES = (
    "relu 4Ki",
    "relu 1Mi",
    "matmul 512 bf16",
    "conv 32x64x56x56 fp16 nhwc",
    "layer_norm 4096x4096 bf16",
    "relu 64Mi",
)


def _ops(rows: list[results.Row]) -> list[results.Row]:
    """The operations that methods kernel and event were tried on."""
    return [
        row
        for row in rows
        if row["key"].rpartition("/")[2] in CACHES
        and row["kernel"].get("median")
        and row["event"].get("median")
    ]


def _of(rows: list[results.Row], subject: str) -> list[results.Row]:
    return [row for row in rows if row["key"].startswith(f"{subject}/")]


def median_of(row: results.Row, by: str, what: str = "median") -> float:
    """Over the passes of a method; or, by "truth", of the time of kernels or of the span."""
    return float(statistics.median(row[by][what]))


def truth_for_methods(row: results.Row) -> dict[str, float]:
    """Method -> the seconds that it should give; method graph only where a graph could be made."""

    def added(events: results.Row) -> float:
        passes = zip(events["traced"], events["untraced"], strict=True)
        return float(statistics.median(traced - untraced for traced, untraced in passes))

    # What the profiler lengthens a call by beyond a kernel that spins.
    tracing = added(row["truth"]["events"]) - added(row["truth"]["events_of_spin"])
    what = "kernel" if row["truth"]["kernels"] == 1 else "span"
    truth = {
        "kernel": median_of(row, "truth", "kernel"),
        "event": median_of(row, "truth", what) - max(0.0, tracing),
    }
    in_a_graph = row["truth_of_graph"]
    if "stamps" in in_a_graph:
        around = in_a_graph["stamps_of_spin"] - in_a_graph["kernel_of_spin"]
        truth["graph"] = statistics.median(in_a_graph["stamps"]) - around
    return truth


def traced_and_stamped(rows: list[results.Row]) -> dict[str, tuple[float, float]]:
    """Key -> kernel time less launch and exit, and time by the stamps, in seconds."""
    times = [
        (row, median_of(row, "kernel", "midmean"), float(statistics.median(row["stamps"])))
        for row in _of(rows, "stamped")
    ]
    offsets = {
        tuple(row["grid"]): traced - stamps
        for row, traced, stamps in times
        if row["asked_ns"] == STAMPED_REFERENCE_NS
    }
    return {
        row["key"]: (traced - offsets[tuple(row["reference_grid"])], stamps)
        for row, traced, stamps in times
        if row["asked_ns"] != STAMPED_REFERENCE_NS and tuple(row["reference_grid"]) in offsets
    }


def _peer_times(row: results.Row) -> dict[str, float]:
    return {name: peer["seconds"] for name, peer in row["peers"].items() if "seconds" in peer}


def _factors(row: results.Row, tools: Iterable[str], span: float) -> list[str]:
    seconds = _peer_times(row)
    return [f"{seconds[tool] / span:.2f}×" if tool in seconds else "–" for tool in tools]


def table(rows: list[results.Row]) -> str:
    lines = []
    for row in _ops(rows):
        kernel, span = (median_of(row, "truth", what) for what in ("kernel", "span"))
        truth = truth_for_methods(row)
        cells = [row["key"], row["truth"]["kernels"], f"{1e6 * kernel:.2f}", f"{1e6 * span:.2f}"]
        cells += [_error(row, method, truth.get(method)) for method in METHODS]
        lines.append(cells + _factors(row, TOOLS, span))
    header = "operation/cache | kernels: | profiler: kernels (µs): | span (µs):"
    header += "".join(f" | {name}:" for name in (*METHODS, *TOOLS))
    spins = [
        (f"{row['asked_ns'] / 1e3:g}", f"{1e6 * median_of(row, 'kernel'):.3f}")
        for row in _of(rows, "spin")
    ]
    stamped = [
        (key.partition("/")[2], f"{1e6 * stamps:.3f}", f"{round(1e9 * (traced - stamps)):+d} ns")
        for key, (traced, stamps) in traced_and_stamped(rows).items()
    ]
    stamped_header = "stamped kernel | by its stamps (µs): | kernel, less launch and exit:"
    tables = (
        summaries.markdown(header, lines),
        summaries.markdown("spins for (µs): | kernel (µs):", spins),
        summaries.markdown(stamped_header, stamped),
    )
    return "\n\n".join(tables)


def tools_table(rows: list[results.Row]) -> str:
    ops = summaries.by_key(_ops(rows))
    lines = []
    for name in _EXAMPLES:
        cells = [name]
        for cache, others in (("cold", ("triton do_bench",)), ("warm", ("torch Timer", "events"))):
            row = ops[f"{name}/{cache}"]
            span = median_of(row, "truth", "span")
            cells += [f"{1e6 * span:.2f} µs", f"{median_of(row, 'kernel', 'span') / span:.2f}×"]
            cells += _factors(row, others, span)
        lines.append(cells)
    return summaries.markdown(
        "operation | cold L2 cache: | `time_op`: | triton's `do_bench`: | warm L2 cache: "
        "| `time_op`: | `torch.utils.benchmark`: | two events around the call:",
        lines,
    )


def _error(row: results.Row, method: str, truth: float | None) -> str:
    if truth is None or "reason" in row[method]:
        return "–"
    off = median_of(row, method) - truth
    # Adding 0.0 makes a positive zero of a negative one.
    return f"{round(1e9 * off):+d} ns ({round(100 * off / truth, 2) + 0.0:+.2f} %)"


def picture(document: dict[str, Any]) -> bytes:
    from convtime.view.figure import numbers, quantity, series_color

    points: dict[str, list[tuple[float, float]]] = {tool: [] for tool in _MARKS}
    for row in _ops(document["rows"]):
        span = median_of(row, "truth", "span")
        for method, truth in truth_for_methods(row).items():
            if "reason" not in row[method]:
                factor = median_of(row, method) / truth
                points[f"convtime {method}"].append((1e6 * span, factor))
        for tool, seconds in _peer_times(row).items():
            # It flushes the cache, and the other tools do not.
            if row["key"].endswith("/cold") == (tool == "triton do_bench"):
                points[tool].append((1e6 * span, seconds / span))
    points = {tool: found for tool, found in points.items() if found}
    shapes, colours = zip(*(_MARKS[tool] for tool in points), strict=True)
    durations, factors = zip(*(point for found in points.values() for point in found), strict=True)
    across = quantity(
        "duration",
        "true duration of the operation (µs), by torch.profiler",
        type="log",
        axis={"values": [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]},
    )
    up = quantity(
        "factor",
        "time that the tool gives over the true one",
        type="log",
        axis={"values": [0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 30]},
    )
    shape = {"domain": [*points], "range": [*shapes]}
    cells = {
        "series": [tool for tool, found in points.items() for _ in found],
        "duration": numbers(durations),
        "factor": numbers(factors),
    }
    dots = summaries.layer(
        {"type": "point", "filled": True, "size": 45},
        cells,
        x=across,
        y=up,
        color=series_color([*points], colours),
        shape={"field": "series", "type": "nominal", "title": None, "scale": shape},
    )
    truth_line = summaries.layer({"type": "rule", "style": "ink"}, {"factor": [1]}, y=up)
    return summaries.picture(
        document,
        "Error by tool and duration",
        "Time that each tool gives over the true one, against the true duration.",
        {"width": 720, "height": 400, "layer": [truth_line, dots]},
    )


def summarise(rows: list[results.Row]) -> dict[str, float]:
    ops = [(row, truth_for_methods(row)) for row in _ops(rows)]

    def times(method: str) -> list[tuple[float, float]]:
        return [
            (median_of(row, method), truth[method])
            for row, truth in ops
            if method in truth and "reason" not in row[method]
            if row["truth"]["kernels"] == 1 or method != "event"
        ]

    stamped = traced_and_stamped(rows).values()
    spins = itertools.combinations(_of(rows, "spin"), 2)
    by_key = summaries.by_key(rows)
    return summaries.known(
        ops=len(ops),
        kernel_ops_off_by_more_than_1pct_or_64ns=_count_off(times("kernel"), 0.01, 64e-9),
        event_single_kernel_ops_off_by_more_than_2pct_or_250ns=_count_off(
            times("event"), 0.02, 250e-9
        ),
        graph_ops_off_by_more_than_3pct_or_500ns=_count_off(times("graph"), 0.03, 500e-9),
        kernel_vs_globaltimer_off_by_more_than_1pct_or_64ns=_count_off(stamped, 0.01, 64e-9),
        known_duration_difference_error_ns=summaries.most(
            itertools.starmap(_difference_error_ns, spins)
        ),
        **(_summarise_cost(by_key["cost"]) if "cost" in by_key else {}),
        **(_summarise_quick(by_key["quick"]["ops"]) if "quick" in by_key else {}),
    )


def _count_off(times: Collection[tuple[float, float]], share: float, floor: float) -> int | None:
    # A difference of two times in seconds is not exact in binary; a picosecond is none.
    off = [abs(value - truth) > max(share * truth, floor) + 1e-12 for value, truth in times]
    return sum(off) if off else None


def _difference_error_ns(a: results.Row, b: results.Row) -> float:
    seconds = (median_of(row, "kernel", "midmean") for row in (a, b))
    measured = 1e9 * (next(seconds) - next(seconds))
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
