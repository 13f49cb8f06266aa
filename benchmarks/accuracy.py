"""How far each method of convtime, and other tools, are from what the device itself did.

The truth of an operation is torch.profiler's (CUPTI's, through kineto): the sum of its kernels, and
the span from the first one's start to the last one's end. Truth and methods take turns, with as
many calls each and as much rest before. Kernels that spin for a known time, and kernels that stamp
the GPU's own clock at start and end, check the traced times without a tracer.

Times are compared by the median over the passes of each pass's median: method kernel with the sum
of the kernels, method event with the same where there is one kernel.

Tracing itself slows kernels of many blocks down: fewer of their blocks fit on the device at a time.
Method event, which does not trace, is therefore compared with the truth less what tracing adds: by
how much two events around the same call are further apart with the profiler on than with it off,
beyond what they are around a kernel of fixed duration. Method graph is compared with stamps of the
device's clock around the call in a graph, less what they are around such a kernel.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import functools
import importlib
import io
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import results

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

PASSES = 3
KERNEL_PASSES = 5  # of the profiler and of method kernel, whose limit is the narrowest
CACHES = ("cold", "warm")
METHODS = ("kernel", "event", "graph")
# Whole ticks of 32 ns, since that is what a kernel spins for.
SPINS_NS = (1_024, 2_016, 4_992, 9_984, 100_000, 1_000_000)
STAMPED_BLOCKS = (1, 132, 528)
STAMPED_MIB = (1, 16, 256)
ONE_WAVE_MIB = 16  # of a copy whose blocks all fit on the device at a time
COPY_GRID = (32_768, 256)  # bytes of a block of copy_stamped, and its threads
# Kernels that spin for so long tell what lies between the stamps and the traced start and end, for
# others of the same grid, or of more blocks than fit on the device at a time.
STAMPED_REFERENCE_NS = 1_024
PEERS = (
    "triton do_bench",
    "triton do_bench_cudagraph",
    "torch Timer",
    "events",
    "sync",
)
NVBENCH = "cuda-bench"
NVBENCH_GROUP = 8
RANGE = "convtime benchmark call"

Call = Callable[[], object]
Measure = Callable[[], results.Row]


# ----------------------------------------------------------------------------------------------
# What the rows say
# ----------------------------------------------------------------------------------------------


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Of what the rows yield; what they do not yield is left out."""
    ops = [row for row in rows if _is_op(row) and _is_complete(row)]
    summary: dict[str, float] = {"ops": len(ops)}
    if ops:
        summary["kernel_ops_off_by_more_than_1pct_or_64ns"] = sum(
            _is_off(_ours(row, "kernel"), _truth(row, "kernel"), 0.01, 64e-9) for row in ops
        )
        summary["event_single_kernel_ops_off_by_more_than_2pct_or_250ns"] = sum(
            _is_off(_ours(row, "event"), _untraced(row, "kernel"), 0.02, 250e-9)
            for row in ops
            if row["truth"]["kernels"] == 1
        )
    captured = [
        row for row in ops if "reason" not in row["graph"] and "stamps" in row["truth_of_graph"]
    ]
    if captured:
        summary["graph_ops_off_by_more_than_3pct_or_500ns"] = sum(
            _is_off(_ours(row, "graph"), _in_a_graph(row), 0.03, 500e-9) for row in captured
        )
    stamped = _stamped_errors(rows)
    if stamped:
        summary["kernel_vs_globaltimer_off_by_more_than_1pct_or_64ns"] = sum(
            _is_off(traced, stamps, 0.01, 64e-9) for traced, stamps in stamped.values()
        )
    spins = [row for row in rows if row["key"].startswith("spin/")]
    if len(spins) > 1:
        summary["known_duration_difference_error_ns"] = max(
            _difference_error_ns(*pair) for pair in itertools.combinations(spins, 2)
        )
    for row in rows:
        if row["key"] == "cost":
            summary |= _summarise_cost(row)
    return summary


def _is_op(row: results.Row) -> bool:
    return row["key"].rpartition("/")[2] in CACHES


def _is_complete(row: results.Row) -> bool:
    """Whether truth and every method gave a time; a graph may have a reason not to."""
    times = [row["truth"].get("kernel"), row["kernel"].get("median"), row["event"].get("median")]
    return all(times) and bool(row["graph"].get("median") or row["graph"].get("reason"))


def _is_off(value: float, truth: float, share: float, floor: float) -> bool:
    # A difference of two times in seconds is not exact in binary; a picosecond is none.
    return abs(value - truth) > max(share * truth, floor) + 1e-12


def _truth(row: results.Row, what: str) -> float:
    return float(statistics.median(row["truth"][what]))


def _untraced(row: results.Row, what: str) -> float:
    return _truth(row, what) - _added_by_tracing(row["truth"])


def _in_a_graph(row: results.Row) -> float:
    truth = row["truth_of_graph"]
    around = truth["stamps_of_spin"] - truth["kernel_of_spin"]
    return float(statistics.median(truth["stamps"]) - around)


def _added_by_tracing(truth: results.Row) -> float:
    """Seconds by which the profiler lengthens a call more than it does a kernel that spins."""

    def added(events: results.Row) -> float:
        passes = zip(events["traced"], events["untraced"], strict=True)
        return float(statistics.median(traced - untraced for traced, untraced in passes))

    return max(0.0, added(truth["events"]) - added(truth["events_of_spin"]))


def _ours(row: results.Row, method: str) -> float:
    return float(statistics.median(row[method]["median"]))


def _finely(row: results.Row) -> float:
    return float(statistics.median(row["kernel"]["midmean"]))


def _stamped_errors(rows: list[results.Row]) -> dict[str, tuple[float, float]]:
    """Key -> kernel time less launch and exit, and time by the stamps, in seconds."""
    stamped = [row for row in rows if row["key"].startswith("stamped/")]
    offsets = {
        tuple(row["grid"]): _finely(row) - statistics.median(row["stamps"])
        for row in stamped
        if row["asked_ns"] == STAMPED_REFERENCE_NS
    }
    return {
        row["key"]: (
            _finely(row) - offsets[tuple(row["reference_grid"])],
            float(statistics.median(row["stamps"])),
        )
        for row in stamped
        if row["asked_ns"] != STAMPED_REFERENCE_NS and tuple(row["reference_grid"]) in offsets
    }


def _difference_error_ns(a: results.Row, b: results.Row) -> float:
    measured = 1e9 * (_finely(a) - _finely(b))
    return float(round(abs(measured - (a["asked_ns"] - b["asked_ns"])), 3))


def _summarise_cost(row: results.Row) -> dict[str, float]:
    loop = statistics.median(row["loop_call_s"]) - statistics.median(row["loop_floor_s"])
    beside = row["device_bytes_free_before"] - row["device_bytes_free_least"] - row["flush_bytes"]
    return {
        "first_use_s": row["first_use_s"],
        "default_call_5us_kernel_s": float(statistics.median(row["default_call_s"])),
        "loop_overhead_us": 1e6 * loop,
        "memory_beside_flush_mb": beside / 1e6,
    }


# ----------------------------------------------------------------------------------------------
# Table and picture
# ----------------------------------------------------------------------------------------------


def _peer_times(rows: list[results.Row]) -> dict[str, dict[str, float]]:
    """Key of an operation's row -> tool -> seconds, for what each tool gave a time for."""
    times = {
        row["key"]: {
            name: peer["seconds"] for name, peer in row["peers"].items() if "seconds" in peer
        }
        for row in rows
        if _is_op(row)
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
    """Markdown, a line a row: truth in µs, our methods' error, other tools' time over the span."""
    tools = (*PEERS, NVBENCH)
    lines = [
        "| operation/cache | kernels | profiler: kernels (µs) | span (µs) | kernel | event | graph "
        f"| {' | '.join(tools)} |",
        "|---|--:|--:|--:|" + "--:|" * (len(METHODS) + len(tools)),
    ]
    peers = _peer_times(rows)
    for row in rows:
        if not _is_op(row) or not _is_complete(row):
            continue
        kernel, span = _truth(row, "kernel"), _truth(row, "span")
        single = row["truth"]["kernels"] == 1
        cells = [
            _error(row, "kernel", kernel),
            _error(row, "event", _untraced(row, "kernel" if single else "span")),
            _error(row, "graph", _in_a_graph(row)) if "stamps" in row["truth_of_graph"] else "–",
        ]
        found = peers[row["key"]]
        cells += [f"{found[tool] / span:.2f}×" if tool in found else "–" for tool in tools]
        lines.append(
            f"| {row['key']} | {row['truth']['kernels']} | {1e6 * kernel:.2f} | {1e6 * span:.2f} "
            f"| {' | '.join(cells)} |"
        )
    return "\n".join([*lines, *_table_of_known(rows)])


def _error(row: results.Row, method: str, truth: float) -> str:
    if "reason" in row[method]:
        return "–"
    off = _ours(row, method) - truth
    # Adding 0.0 makes a positive zero of a negative one.
    return f"{round(1e9 * off):+d} ns ({round(100 * off / truth, 2) + 0.0:+.2f} %)"


def _table_of_known(rows: list[results.Row]) -> list[str]:
    stamped = _stamped_errors(rows)
    spins = [row for row in rows if row["key"].startswith("spin/")]
    lines: list[str] = []
    if spins:
        lines += ["", "| spins for (µs) | kernel (µs) |", "|--:|--:|"]
        lines += [
            f"| {row['asked_ns'] / 1e3:g} | {1e6 * _ours(row, 'kernel'):.3f} |" for row in spins
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


# Okabe and Ito's palette, which holds for colour-blind readers too.
_MARKS = {
    "convtime kernel": ("o", "#0072B2"),
    "convtime event": ("s", "#56B4E9"),
    "convtime graph": ("D", "#009E73"),
    "triton do_bench": ("^", "#D55E00"),
    "triton do_bench_cudagraph": ("v", "#E69F00"),
    "torch Timer": ("x", "#CC79A7"),
    "events": ("+", "#999999"),
    "sync": ("1", "#555555"),
    NVBENCH: ("*", "#000000"),
}
_FLUSHING = {"triton do_bench", NVBENCH}  # compared with a cold cache, the other tools with a warm


def _points(rows: list[results.Row]) -> dict[str, list[tuple[float, float]]]:
    """Tool -> duration in µs, and the time that the tool gave over the true one."""
    points: dict[str, list[tuple[float, float]]] = {tool: [] for tool in _MARKS}
    peers = _peer_times(rows)
    for row in rows:
        if not _is_op(row) or not _is_complete(row):
            continue
        span = _truth(row, "span")
        references = {
            "kernel": _truth(row, "kernel"),
            "event": _untraced(row, "kernel" if row["truth"]["kernels"] == 1 else "span"),
        }
        if "stamps" in row["truth_of_graph"]:
            references["graph"] = _in_a_graph(row)
        for method, reference in references.items():
            if "reason" not in row[method]:
                factor = _ours(row, method) / reference
                points[f"convtime {method}"].append((1e6 * span, factor))
        for tool, seconds in peers[row["key"]].items():
            if row["key"].endswith("/cold") == (tool in _FLUSHING):
                points[tool].append((1e6 * span, seconds / span))
    return points


def picture(document: dict[str, Any]) -> bytes:
    """A PNG: what each tool says over what the device did, against how long that was."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.axhline(1, color="grey", linewidth=0.8)
    for tool, found in _points(document["rows"]).items():
        if found:
            marker, colour = _MARKS[tool]
            durations, factors = zip(*found, strict=True)
            axes.plot(durations, factors, marker, color=colour, markersize=6, alpha=0.8, label=tool)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.set_yticks([0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 30])
    axes.set_xlabel("true duration of the operation (µs), by torch.profiler")
    axes.set_ylabel("time that the tool gives over the true one")
    axes.grid(alpha=0.25)
    axes.legend(loc="upper right", fontsize=8)
    facts = document["provenance"]
    axes.set_title(f"Error by tool and duration; {facts['gpu']}, torch {facts['torch']}", size=10)
    return png_of(figure)


def png_of(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


# ----------------------------------------------------------------------------------------------
# The operations
# ----------------------------------------------------------------------------------------------


def operations(device: torch.device) -> dict[str, Callable[[], Call]]:
    """Name -> what makes the callable and its data, which are large: one at a time.

    The data is random: on zeros a matmul is 13 % faster.
    """
    import torch
    from torch.nn import functional as F

    half, full, brain = torch.float16, torch.float32, torch.bfloat16

    def rand(*shape: int, dtype: torch.dtype = full) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    def relu(count: int) -> Call:
        return functools.partial(torch.relu, rand(count))

    def matmul(n: int) -> Call:
        return functools.partial(torch.mm, rand(n, n, dtype=brain), rand(n, n, dtype=brain))

    def copy(count: int) -> Call:
        target = torch.empty(count, device=device, dtype=full)
        return functools.partial(target.copy_, torch.ones_like(target))

    def layer_norm() -> Call:
        return functools.partial(F.layer_norm, rand(4096, 4096, dtype=brain), (4096,))

    def conv(batch: int, dtype: torch.dtype, layout: torch.memory_format) -> Call:
        x = rand(batch, 64, 56, 56, dtype=dtype).to(memory_format=layout)
        weight = rand(64, 64, 3, 3, dtype=dtype).to(memory_format=layout)
        return functools.partial(F.conv2d, x, weight, padding=1)

    def conv_backward() -> Call:
        x, grad = (
            rand(32, 64, 56, 56, dtype=half).to(memory_format=torch.channels_last) for _ in range(2)
        )
        weight = rand(64, 64, 3, 3, dtype=half).to(memory_format=torch.channels_last)
        pair = ([1, 1], [1, 1], [1, 1])
        return functools.partial(
            torch.ops.aten.convolution_backward,
            *(grad, x, weight, None, *pair, False, [0, 0], 1, [True, True, False]),
        )

    def linear_relu() -> Call:
        x, weight = rand(4096, 1024, dtype=brain), rand(1024, 1024, dtype=brain)
        return lambda: torch.relu(F.linear(x, weight))

    def cross_entropy() -> Call:
        target = torch.randint(8192, (8192,), device=device)
        return functools.partial(F.cross_entropy, rand(8192, 8192), target)

    def elementwise_chain() -> Call:
        x = rand(1 << 22)
        return lambda: (x * 2).exp().add(1)

    def rows_of(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return rand(50_000, 1024), torch.randint(50_000, (count,), device=device)

    def embedding() -> Call:
        weight, index = rows_of(16_384)
        return functools.partial(F.embedding, index, weight)

    def index_select() -> Call:
        weight, index = rows_of(2_048)
        return functools.partial(torch.index_select, weight, 0, index)

    mi = 1 << 20
    return {
        "relu 4Ki": lambda: relu(4096),
        "relu 1Mi": lambda: relu(mi),
        "relu 64Mi": lambda: relu(64 * mi),
        "add 16Mi": lambda: functools.partial(torch.add, rand(16 * mi), rand(16 * mi)),
        "softmax 4096x4096 bf16": lambda: functools.partial(
            torch.softmax, rand(4096, 4096, dtype=brain), 1
        ),
        "layer_norm 4096x4096 bf16": layer_norm,
        "sum 16Mi": lambda: functools.partial(torch.sum, rand(16 * mi)),
        "copy_ 64Mi": lambda: copy(64 * mi),
        "gelu 256Mi": lambda: functools.partial(F.gelu, rand(256 * mi)),
        "matmul 512 bf16": lambda: matmul(512),
        "matmul 2048 bf16": lambda: matmul(2048),
        "matmul 4096 bf16": lambda: matmul(4096),
        "matmul 8192 bf16": lambda: matmul(8192),
        "bmm 64x512x512 bf16": lambda: functools.partial(
            torch.bmm, rand(64, 512, 512, dtype=brain), rand(64, 512, 512, dtype=brain)
        ),
        "conv 1x64x56x56 fp32": lambda: conv(1, full, torch.contiguous_format),
        "conv 32x64x56x56 fp16 nhwc": lambda: conv(32, half, torch.channels_last),
        "conv backward 32x64x56x56 fp16 nhwc": conv_backward,
        "linear+relu 4096x1024 bf16": linear_relu,
        "cross_entropy 8192x8192": cross_entropy,
        "mul+exp+add 4Mi": elementwise_chain,
        "sort 1Mi": lambda: functools.partial(torch.sort, rand(mi)),
        "embedding 16384x1024": embedding,
        "index_select 2048x1024": index_select,
        # A copy is the longest: it does not draw the power at which the GPU lowers its clock.
        "copy_ 5Gi": lambda: copy(5 * 1024 * mi),
    }


# ----------------------------------------------------------------------------------------------
# The truth, by torch.profiler
# ----------------------------------------------------------------------------------------------


class TraceEvent(NamedTuple):
    """One of kineto's events; times in nanoseconds."""

    name: str
    start: int
    end: int
    on_device: bool
    correlation: int


class Trace(NamedTuple):
    """What the device did in each call; times in seconds."""

    kernels: list[int]
    sums: list[float]
    spans: list[float]
    held: bool


def read_trace(events: Iterable[TraceEvent]) -> Trace:
    """Attributes what ran on the device to the call in whose range the host launched it.

    Launches count whichever thread made them; flushes and the holding kernel were launched outside
    of the ranges, and so drop out.

    Raises:
        ValueError: A call has nothing on the device.
    """
    events = list(events)
    ranges = sorted((e.start, e.end) for e in events if not e.on_device and e.name == RANGE)
    launches = {
        e.correlation: e.start
        for e in events
        if not e.on_device and e.name.startswith("cu") and e.correlation
    }
    starts = [start for start, _ in ranges]
    calls: list[list[TraceEvent]] = [[] for _ in ranges]
    last_launch = 0
    for event in events:
        # The device's timeline repeats the range itself, under its own name.
        if not event.on_device or event.name == RANGE or event.correlation not in launches:
            continue
        launched = launches[event.correlation]
        index = bisect.bisect_right(starts, launched) - 1
        if index >= 0 and launched <= ranges[index][1]:
            calls[index].append(event)
            last_launch = max(last_launch, launched)
    if not calls or not all(calls):
        raise ValueError(f"{sum(not call for call in calls)} of {len(calls)} calls have no kernel")
    return Trace(
        kernels=[len(call) for call in calls],
        sums=[1e-9 * sum(e.end - e.start for e in call) for call in calls],
        spans=[1e-9 * (max(e.end for e in c) - min(e.start for e in c)) for c in calls],
        held=min(e.start for e in calls[0]) >= last_launch,
    )


def profile_calls(call: Call, count: int, *, cold: bool) -> Trace:
    """Calls queued back to back behind a kernel that holds them until all are issued.

    Were they not held, a call's span would have the host's gaps in it; then the hold is lengthened.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    hold_ns = 5_000_000 + 200_000 * count
    for _ in range(3):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            torch.ops.convtime.spin_ns(hold_ns)
            for _ in range(count):
                if cold:
                    torch.ops.convtime.flush_l2()
                with record_function(RANGE):
                    call()
            torch.cuda.synchronize()
        trace = read_trace(_kineto_events(profiler))
        if trace.held:
            break
        hold_ns *= 3
    return trace


def _kineto_events(profiler: Any) -> Iterable[TraceEvent]:
    from torch._C._autograd import DeviceType

    for event in profiler.profiler.kineto_results.events():
        start = event.start_ns()
        yield TraceEvent(
            name=event.name(),
            start=start,
            end=start + event.duration_ns(),
            on_device=event.device_type() == DeviceType.CUDA,
            correlation=event.correlation_id(),
        )


# ----------------------------------------------------------------------------------------------
# Rows of operations
# ----------------------------------------------------------------------------------------------


def measure_op(make: Callable[[], Call], cache: str) -> results.Row:
    import torch

    call = make()
    spin: Call = functools.partial(torch.ops.convtime.spin_ns, 5_000)
    count, rest = _plan(call)
    truth = _TruthPasses(call, spin, count, cold=cache == "cold")
    ours = {method: _MethodPasses(call, method, cache, count) for method in METHODS}
    # A sample of it replays five calls of a long operation, and so do capturing and warming up: as
    # many calls as the others make.
    ours["graph"] = _MethodPasses(call, "graph", cache, count // 10, warmup=1)
    in_a_graph = _StampPasses(call, cold=cache == "cold")
    every = [truth.take, *(one.take for one in ours.values()), in_a_graph.take]
    for take in every * PASSES + [truth.trace, ours["kernel"].take] * (KERNEL_PASSES - PASSES):
        # Each begins on a GPU as cool as the others: its clock falls within 0.1 s of load.
        time.sleep(rest)
        take()
    return {
        "calls": count,
        "truth": truth.row(),
        **{method: passes.row() for method, passes in ours.items()},
        "truth_of_graph": in_a_graph.row() | _stamps_of_spin(cache == "cold"),
        "peers": measure_peers(call),
    }


def _plan(call: Call) -> tuple[int, float]:
    """How many calls a pass has, and the seconds of rest before it, from a rough duration."""
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    each = (time.perf_counter() - begin) / 5
    # No more than 50: a thousand launches fill the queue, and cannot all be held.
    count = min(50, max(20, int(0.02 / each)))
    return count, min(0.5, 0.02 + 8 * count * each)


class _TruthPasses:
    def __init__(self, call: Call, spin: Call, count: int, *, cold: bool) -> None:
        self._call, self._count, self._cold = call, count, cold
        self._traces: list[Trace] = []
        self._events = _EventPasses(call, count, cold=cold)
        self._events_of_spin = _EventPasses(spin, count, cold=cold)

    def trace(self) -> None:
        self._traces.append(profile_calls(self._call, self._count, cold=self._cold))

    def take(self) -> None:
        self.trace()
        self._events.take()
        self._events_of_spin.take()

    def row(self) -> results.Row:
        return {
            "events": self._events.row(),
            "events_of_spin": self._events_of_spin.row(),
            "kernels": statistics.mode(n for trace in self._traces for n in trace.kernels),
            "kernel": [statistics.median(trace.sums) for trace in self._traces],
            "span": [statistics.median(trace.spans) for trace in self._traces],
            "held": [trace.held for trace in self._traces],
        }


class _EventPasses:
    """Time between two events around a call, with and without the profiler."""

    def __init__(self, call: Call, count: int, *, cold: bool) -> None:
        self._call, self._count, self._cold = call, count, cold
        self._row: results.Row = {"untraced": [], "traced": []}

    def take(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._row["untraced"].append(self._median())
        with profile(activities=[ProfilerActivity.CUDA]):
            self._row["traced"].append(self._median())

    def _median(self) -> float:
        import torch

        event: Any = torch.cuda.Event
        pairs = [[event(enable_timing=True) for _ in range(2)] for _ in range(self._count)]
        self._call()
        torch.cuda.synchronize()
        torch.ops.convtime.spin_ns(5_000_000 + 200_000 * self._count)
        for start, stop in pairs:
            if self._cold:
                torch.ops.convtime.flush_l2()
            start.record()
            self._call()
            stop.record()
        torch.cuda.synchronize()
        milliseconds = [float(start.elapsed_time(stop)) for start, stop in pairs]
        return 1e-3 * statistics.median(milliseconds)

    def row(self) -> results.Row:
        return self._row


class _StampPasses:
    """Time between a stamp before and one behind the call in a graph, untraced."""

    LENGTH = 2
    REPLAYS = 10

    def __init__(self, call: Call, *, cold: bool) -> None:
        import torch

        self._row: results.Row = {"stamps": []}
        self._stamps: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._graph = torch.cuda.CUDAGraph()
        call()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(self._graph):
                for _ in range(self.LENGTH):
                    if cold:
                        torch.ops.convtime.flush_l2()
                    spun = torch.ops.convtime.spin_ns(4_000)
                    call()
                    self._stamps.append((spun, torch.ops.convtime.read_clocks()))
        except RuntimeError as error:
            self._row = {"reason": _first_line(error)}

    def take(self) -> None:
        import torch

        if "reason" in self._row:
            return
        nanoseconds = []
        for _ in range(self.REPLAYS):
            self._graph.replay()
            torch.cuda.synchronize()
            nanoseconds += [int(end[0] - spun[0, 1]) for spun, end in self._stamps]
        self._row["stamps"].append(1e-9 * statistics.median(nanoseconds))

    def row(self) -> results.Row:
        return self._row


@functools.cache
def _stamps_of_spin(cold: bool) -> results.Row:
    """What the stamps are around a kernel whose own time is known."""
    import torch

    spin: Call = functools.partial(torch.ops.convtime.spin_ns, 5_000)
    passes = _StampPasses(spin, cold=cold)
    kernel = []
    for _ in range(PASSES):
        passes.take()
        kernel.append(statistics.median(profile_calls(spin, 50, cold=cold).sums))
    return {
        "stamps_of_spin": statistics.median(passes.row()["stamps"]),
        "kernel_of_spin": statistics.median(kernel),
    }


class _MethodPasses:
    def __init__(self, call: Call, method: str, cache: str, count: int, *, warmup: int = 3) -> None:
        self._call, self._method, self._cache, self._count = call, method, cache, count
        self._warmup = warmup
        self._row: results.Row = {name: [] for name in ("median", "midmean", "span", "queue")}
        self._row["overhead"] = []

    def take(self) -> None:
        if "reason" in self._row:
            return
        from convtime import time_op

        try:
            measurement = time_op(
                self._call,
                method=self._method,
                cache=self._cache,
                warmup=self._warmup,
                stop="count",
                min_samples=1,
                max_samples=self._count,
            )
        except (RuntimeError, ValueError) as error:
            self._row = {"reason": _first_line(error)}
            return
        if measurement.method != self._method:
            self._row = {"reason": measurement.method_reason or f"was {measurement.method}"}
            return
        self._row["median"].append(measurement.median)
        self._row["midmean"].append(_midmean(measurement.seconds))
        self._row["queue"].append(measurement.queue)
        self._row["overhead"].append(measurement.overhead)
        if measurement.spans:
            self._row["span"].append(statistics.median(measurement.spans))

    def row(self) -> results.Row:
        return self._row


def _midmean(values: Sequence[float]) -> float:
    """Mean of the middle half: finer than the ticks that a median is a whole number of."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return statistics.fmean(ordered[quarter : len(ordered) - quarter])


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# ----------------------------------------------------------------------------------------------
# Other tools
# ----------------------------------------------------------------------------------------------


def measure_peers(call: Call) -> results.Row:
    """What each tool says with its own defaults, as a median where it can give one."""
    tools: dict[str, Callable[[Call], float]] = {
        "triton do_bench": functools.partial(_triton, "do_bench"),
        "triton do_bench_cudagraph": functools.partial(_triton, "do_bench_cudagraph"),
        "torch Timer": _torch_timer,
        "events": _plain_events,
        "sync": _plain_sync,
    }
    return {name: _try(tools[name], call) for name in PEERS}


def _try(tool: Callable[[Call], float], call: Call) -> results.Row:
    try:
        return {"seconds": tool(call)}
    except (ImportError, RuntimeError, AttributeError) as error:
        return {"reason": _first_line(error)}


def _triton(function: str, call: Call) -> float:
    testing: Any = importlib.import_module("triton.testing")
    return 1e-3 * float(getattr(testing, function)(call, return_mode="median"))


def do_bench_medians(calls: Mapping[str, Call]) -> results.Row:
    """As "triton", do_bench's median of each call, in seconds; or none, and the reason."""
    try:
        return {"triton": {name: _triton("do_bench", call) for name, call in calls.items()}}
    except (ImportError, RuntimeError, AttributeError) as error:
        return {"triton": {}, "triton_reason": f"{type(error).__name__}: {error}"}


def _torch_timer(call: Call) -> float:
    from torch.utils.benchmark import Timer

    timer: Any = Timer(stmt="call()", globals={"call": call})
    return float(timer.blocked_autorange(min_run_time=0.1).median)


def _plain_events(call: Call) -> float:
    import torch

    event: Any = torch.cuda.Event
    samples: list[float] = []
    for _ in range(30):
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        samples.append(1e-3 * start.elapsed_time(end))
    return statistics.median(samples)


def _plain_sync(call: Call) -> float:
    import torch

    samples = []
    for _ in range(30):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples)


def measure_nvbench(ops: Sequence[str], device: torch.device) -> results.Row:
    """cuda-bench takes a process over, and has streams of its own; so it gets one."""
    try:
        return {"ops": run_probe("cuda-bench", device, ops=ops, timeout=180)}
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        reason = _first_line(error)
        return {"ops": {op: {"reason": reason} for op in ops}}


def probe_nvbench(device: torch.device, ops: Sequence[str]) -> results.Row:
    import torch

    bench: Any = importlib.import_module("cuda.bench")
    reader: Any = importlib.import_module("cuda.bench.results")
    external_stream: Any = torch.cuda.ExternalStream
    makers = operations(device)

    def benchmark(op: str) -> Callable[[Any], None]:
        def run(state: Any) -> None:
            # As in its own example for PyTorch: at its default, it drops all samples of a GPU whose
            # clock has fallen under load.
            state.set_throttle_threshold(0.25)
            stream = external_stream(state.get_stream().addressof(), device=device)
            torch.cuda.empty_cache()  # of the operation before
            call = makers[op]()
            torch.cuda.synchronize()

            def launch(_: Any) -> None:
                with torch.cuda.stream(stream):
                    call()

            state.exec(launch)
            torch.cuda.synchronize()

        return run

    for op in ops:
        bench.register(benchmark(op)).set_name(op)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        bench.run_all_benchmarks(
            [
                *(
                    "cuda-bench",
                    "--quiet",
                    "--json",
                    str(path),
                    "--devices",
                    str(device.index or 0),
                ),
                *("--cold-warmup-runs", "3", "--timeout", "0.5", "--batch-target-time", "0.1"),
            ]
        )
        found = reader.BenchmarkResult.from_json(path)
    return {op: _read_nvbench(found[op]) if op in found else {"reason": "no result"} for op in ops}


def _read_nvbench(benchmark: Any) -> results.Row:
    (state,) = benchmark
    if state.is_skipped:
        return {"reason": state.skip_reason or "skipped"}

    def value(*tags: str) -> Any:
        found = (state.summaries[tag].value for tag in tags if tag in state.summaries)
        return next(found, None)

    return {
        "isolated": value("nv/cold/time/gpu/median", "nv/cold/time/gpu/mean"),
        "batch": value("nv/batch/time/gpu/mean"),
        "samples": value("nv/cold/sample_size"),
    }


# ----------------------------------------------------------------------------------------------
# Known durations
# ----------------------------------------------------------------------------------------------


def measure_spin(asked_ns: int) -> results.Row:
    import torch

    passes = _MethodPasses(lambda: torch.ops.convtime.spin_ns(asked_ns), "kernel", "warm", 50)
    for _ in range(PASSES):
        passes.take()
    return {"asked_ns": asked_ns, "kernel": passes.row()}


def measure_stamped(
    call: Callable[[], torch.Tensor],
    cache: str,
    grid: tuple[int, int],
    reference_grid: tuple[int, int],
    asked_ns: int | None,
) -> results.Row:
    """By turns the traced kernel time, and the stamps of the same calls untraced."""
    passes = _MethodPasses(call, "kernel", cache, 50)
    stamps = []
    for _ in range(PASSES):
        passes.take()
        stamps.append(median_of_stamps(call, 50, cold=cache == "cold"))
    return {
        "cache": cache,
        "grid": list(grid),
        "reference_grid": list(reference_grid),
        "asked_ns": asked_ns,
        "kernel": passes.row(),
        "stamps": stamps,
    }


def median_of_stamps(call: Callable[[], torch.Tensor], count: int, *, cold: bool) -> float:
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    torch.ops.convtime.spin_ns(5_000_000)
    found = []
    for _ in range(count):
        if cold:
            torch.ops.convtime.flush_l2()
        found.append(call())
    torch.cuda.synchronize()
    durations = [int(one[:, 1].max() - one[:, 0].min()) for one in (f.cpu() for f in found)]
    return 1e-9 * statistics.median(durations)


def stamped_cases(device: torch.device) -> dict[str, Measure]:
    import torch

    def spin(grid: tuple[int, int], asked_ns: int) -> results.Row:
        call: Callable[[], torch.Tensor] = functools.partial(
            torch.ops.convtime.spin_ns, asked_ns, *grid
        )
        return measure_stamped(call, "warm", grid, grid, asked_ns)

    def copy(mib: int) -> results.Row:
        source = torch.randn(mib << 18, device=device)
        return measure_stamped(
            lambda: torch.ops.convtime.copy_stamped(source)[1],
            "cold",
            copy_grid(mib),
            copy_grid(min(mib, ONE_WAVE_MIB)),
            None,
        )

    def copy_grid(mib: int) -> tuple[int, int]:
        return (mib << 20) // COPY_GRID[0], COPY_GRID[1]

    spun = [(blocks, 1) for blocks in STAMPED_BLOCKS]
    cases: dict[str, Measure] = {}
    for grid in (*spun, copy_grid(1), copy_grid(ONE_WAVE_MIB)):
        for asked_ns in (STAMPED_REFERENCE_NS, *((4_992, 100_000) if grid in spun else ())):
            key = f"stamped/spin {asked_ns} ns, {grid[0]} x {grid[1]}"
            cases[key] = functools.partial(spin, grid, asked_ns)
    for mib in STAMPED_MIB:
        cases[f"stamped/copy {mib} MiB"] = functools.partial(copy, mib)
    return cases


# ----------------------------------------------------------------------------------------------
# Costs
# ----------------------------------------------------------------------------------------------


def measure_cost(device: torch.device) -> results.Row:
    """What using convtime costs.

    first_use_s: the first time_op of a fresh process, whose CUDA context and operation are warm.
    default_call_s: later calls of time_op with its defaults, on a kernel of about 5 µs.
    loop_call_s, loop_floor_s: one round of the sampling loop (method cpu, which makes no CUDA
        calls) on a function in C that does nothing, and one round of a bare loop in C that calls
        the same function. What is between them is the loop's own.
    device_bytes_*: free memory of the device before, and at its least during, the first time_op;
        the flush buffer, which is asked for, is four times the L2 cache.
    host_bytes: by which the process's resident memory grew meanwhile; not judged.
    """
    call_s, floor_s = loop_times()
    return {
        **run_probe("first-use", device),
        **run_probe("memory", device),
        "loop_call_s": call_s,
        "loop_floor_s": floor_s,
    }


def loop_times(rounds: int = 5, count: int = 10_000) -> tuple[list[float], list[float]]:
    """Seconds of one round: of the sampling loop, and of a bare loop in C."""
    from _thread import get_ident

    from convtime import time_op

    calls, floors = [], []
    for _ in range(rounds):
        measurement = time_op(
            get_ident, method="cpu", device="cpu", warmup=3, stop="count", max_samples=count
        )
        calls.append(measurement.sampling_seconds / len(measurement.seconds))
        begin = time.perf_counter()
        collections.deque(itertools.starmap(get_ident, itertools.repeat((), count)), maxlen=0)
        floors.append((time.perf_counter() - begin) / count)
    return calls, floors


def _kernel_of_5us(device: torch.device) -> Call:
    import torch

    return functools.partial(torch.relu, torch.randn(1 << 21, device=device))


def probe_first_use(device: torch.device, _: Sequence[str]) -> results.Row:
    import torch

    from convtime import time_op

    call = _kernel_of_5us(device)
    call()
    torch.cuda.synchronize()

    def seconds() -> float:
        begin = time.perf_counter()
        measured.append(time_op(call).median)
        return time.perf_counter() - begin

    measured: list[float] = []
    return {
        "first_use_s": seconds(),
        "default_call_s": [seconds() for _ in range(10)],
        "default_call_medians": measured,
    }


def probe_memory(device: torch.device, _: Sequence[str]) -> results.Row:
    import threading

    import torch

    from convtime import time_op

    call = _kernel_of_5us(device)
    call()
    torch.cuda.synchronize()
    free = [torch.cuda.mem_get_info(device)[0]]
    resident = _resident_bytes()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            free.append(torch.cuda.mem_get_info(device)[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        time_op(call)
    finally:
        done.set()
        watcher.join()
    free.append(torch.cuda.mem_get_info(device)[0])
    properties = torch.cuda.get_device_properties(device)
    return {
        "device_bytes_free_before": free[0],
        "device_bytes_free_least": min(free),
        "flush_bytes": 4 * properties.L2_cache_size,
        "host_bytes": _resident_bytes() - resident,
    }


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    return 0


# ----------------------------------------------------------------------------------------------
# Processes and cases
# ----------------------------------------------------------------------------------------------

PROBES: dict[str, Callable[[torch.device, Sequence[str]], results.Row]] = {
    "first-use": probe_first_use,
    "memory": probe_memory,
    "cuda-bench": probe_nvbench,
}
_RESULT = "probe result: "


def run_probe(
    name: str, device: torch.device, *, ops: Sequence[str] = (), timeout: float = 120
) -> results.Row:
    """What one of the probes finds in a fresh process; errors as run_fresh."""
    options = ["--probe", name, "--ops", json.dumps(list(ops)), "--device", str(device)]
    return run_fresh(__file__, options, timeout)


def run_fresh(script: str, options: Sequence[str], timeout: float = 120) -> results.Row:
    """What a fresh process of a script gives by `print_result`.

    Raises:
        RuntimeError: It failed; with the last line that it said.
        subprocess.TimeoutExpired: It took longer.
    """
    done = subprocess.run(
        [sys.executable, script, *options],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(_RESULT):
            found: results.Row = json.loads(line.removeprefix(_RESULT))
            return found
    said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
    raise RuntimeError(f"{Path(script).name} {' '.join(options)} failed: {said[-1]}")


def print_result(row: results.Row) -> None:
    # On a line of its own, whatever a library has printed without ending its line.
    print(f"\n{_RESULT}{json.dumps(row)}", flush=True)


def make_cases(device: torch.device) -> Mapping[str, Measure]:
    ops = operations(device)
    cases: dict[str, Measure] = {"cost": functools.partial(measure_cost, device)}
    for asked_ns in SPINS_NS:
        cases[f"spin/{asked_ns} ns"] = functools.partial(measure_spin, asked_ns)
    cases |= stamped_cases(device)
    for op, make in ops.items():
        for cache in CACHES:
            cases[f"{op}/{cache}"] = functools.partial(measure_op, make, cache)
    names = list(ops)
    for first in range(0, len(names), NVBENCH_GROUP):
        group = names[first : first + NVBENCH_GROUP]
        key = f"{NVBENCH}/{first // NVBENCH_GROUP + 1}"
        cases[key] = functools.partial(measure_nvbench, group, device)
    return cases


def find_gpu(name: str | None) -> torch.device:
    """The GPU of that name, or the current one, made the current one."""
    import torch

    from convtime.conv_compare import find_device

    device = find_device(name)
    if device.type != "cuda":
        raise SystemExit("error: this benchmark is of a GPU, and there is none")
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.add_argument("--probe", choices=sorted(PROBES), help=argparse.SUPPRESS)
    parser.add_argument("--ops", type=json.loads, default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()

    device = find_gpu(options.device)
    if options.probe:
        print_result(PROBES[options.probe](device, options.ops))
        return

    from convtime.provenance import provenance

    file = results.ResultFile("accuracy", summarise, options, provenance(device))
    failed = [
        key
        for key, measure in file.pending(make_cases(device)).items()
        if not _measured(file, key, measure)
    ]
    print(file.path)
    if failed:
        raise SystemExit(f"error: not measured: {', '.join(failed)}")


def _measured(file: results.ResultFile, key: str, measure: Measure) -> bool:
    """Adds a row; where there is none, the other cases are still to be measured."""
    import torch

    begin = time.perf_counter()
    try:
        file.add(key, measure())
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"{key}: {_first_line(error)}", flush=True)
        return False
    finally:
        torch.cuda.empty_cache()  # of data that no other case can use
    print(f"{key}: {time.perf_counter() - begin:.1f} s", flush=True)
    return True


if __name__ == "__main__":
    main()
