"""The operations that are timed, and the row of each: truth, methods and other tools by turns."""

import functools
import statistics
import time
from typing import Any

import results
import torch
from common.calls import measure_peers
from common.operations import operation
from common.running import AS_IS, Call, counted, first_line
from common.summaries import midmean
from common.truth import profile_calls
from torch.profiler import ProfilerActivity, profile

from convtime import time_op
from convtime.timing.options import Cache, Method

PASSES = 3
KERNEL_PASSES = 5  # of the profiler and of method kernel, whose limit is the narrowest
_SPIN: Call = functools.partial(torch.ops.convtime.spin_ns, 5_000)


OPERATIONS = (
    "relu 4Ki", "relu 1Mi", "relu 64Mi", "add 16Mi", "softmax 4096x4096 bf16",
    "layer_norm 4096x4096 bf16", "sum 1Mi", "sum 16Mi", "copy_ 64Mi", "gelu 256Mi",
    "matmul 512 bf16", "matmul 2048 bf16", "matmul 4096 bf16", "matmul 8192 bf16",
    "bmm 64x512x512 bf16", "conv 1x64x56x56 fp32", "conv 32x64x56x56 fp16 nhwc",
    "conv backward 32x64x56x56 fp16 nhwc", "linear+relu 4096x1024 bf16", "cross_entropy 8192x8192",
    "mul+exp+add 4Mi", "sort 1Mi", "embedding 16384x1024", "index_select 2048x1024",
    # A copy is the longest: it does not draw the power at which the GPU lowers its clock.
    "copy_ 5Gi",
)  # fmt: skip


def measure_op(op: str, cache: Cache, device: torch.device) -> results.Row:
    call = operation(op, device)
    count, rest = _plan(call)
    cold = cache == "cold"
    counts: list[int] = []
    truth: results.Row = {"kernel": [], "span": [], "events": {}, "events_of_spin": {}}

    def trace() -> None:
        trace = profile_calls(call, count, cold=cold)
        counts.extend(trace.kernels)
        truth["kernel"].append(statistics.median(trace.busy))
        truth["span"].append(statistics.median(trace.spans))

    def take_truth() -> None:
        trace()
        _add_events(truth["events"], call, count, cold=cold)
        _add_events(truth["events_of_spin"], _SPIN, count, cold=cold)

    ours = {
        "kernel": MethodPasses(call, "kernel", cache, count),
        "event": MethodPasses(call, "event", cache, count),
        # A sample of it replays five calls of a long operation, and so do capturing and warming up:
        # as many calls as the others make.
        "graph": MethodPasses(call, "graph", cache, count // 10, warmup=1),
    }
    in_a_graph = StampPasses(call, count, cold=cold)
    every = [take_truth, *(passes.take for passes in ours.values()), in_a_graph.take]
    for take in every * PASSES + [trace, ours["kernel"].take] * (KERNEL_PASSES - PASSES):
        # Each begins on a GPU as cool as the others: its clock falls within 0.1 s of load.
        time.sleep(rest)
        take()
    return {
        "calls": count,
        "truth": {"kernels": statistics.mode(counts), **truth},
        **{method: passes.row for method, passes in ours.items()},
        "truth_of_graph": in_a_graph.row | stamps_of_spin(cold),
        "peers": measure_peers(call),
    }


def _plan(call: Call) -> tuple[int, float]:
    """How many calls a pass makes, and the seconds of rest before it."""
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


def _add_events(row: results.Row, call: Call, count: int, *, cold: bool) -> None:
    untraced = _median_between_events(call, count, cold=cold)
    with profile(activities=[ProfilerActivity.CUDA]):
        traced = _median_between_events(call, count, cold=cold)
    row.setdefault("untraced", []).append(untraced)
    row.setdefault("traced", []).append(traced)


def _median_between_events(call: Call, count: int, *, cold: bool) -> float:
    event: Any = torch.cuda.Event
    pairs = [[event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    call()
    torch.cuda.synchronize()
    torch.ops.convtime.spin_ns(5_000_000 + 200_000 * count)
    for start, stop in pairs:
        if cold:
            torch.ops.convtime.flush_l2()
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return 1e-3 * statistics.median(float(start.elapsed_time(stop)) for start, stop in pairs)


class StampPasses:
    """What a call takes in a graph by stamps of the device's clock, untraced.

    With a cold cache, the time from a stamp before the call to one after it. With a warm one, as
    method graph has it, that of calls back to back, which hides part of their launches:
    by how much longer a series of more of them takes.
    """

    MORE = 8  # calls that the second series of a warm graph has beyond the first's one

    def __init__(self, call: Call, count: int, *, cold: bool) -> None:
        self.row: results.Row = {"stamps": []}
        self._cold = cold
        series = (1, 1) if cold else (1, 1 + self.MORE)
        # With a warm cache, as many calls as the other passes make.
        self._replays = 10 if cold else count // sum(series)
        self._stamps: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._graph = torch.cuda.CUDAGraph()
        call()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(self._graph):
                for calls in series:
                    if cold:
                        torch.ops.convtime.flush_l2()
                    spun = torch.ops.convtime.spin_ns(4_000)
                    for _ in range(calls):
                        call()
                    self._stamps.append((spun, torch.ops.convtime.read_clocks()))
        except RuntimeError as error:
            self.row = {"reason": first_line(error)}

    def take(self) -> None:
        if "reason" in self.row:
            return
        nanoseconds: list[float] = []
        for _ in range(self._replays):
            self._graph.replay()
            torch.cuda.synchronize()
            first, second = (int(end[0] - spun[0, 1]) for spun, end in self._stamps)
            nanoseconds += [first, second] if self._cold else [(second - first) / self.MORE]
        self.row["stamps"].append(1e-9 * statistics.median(nanoseconds))


@functools.cache
def stamps_of_spin(cold: bool) -> results.Row:
    """What the stamps say of a kernel whose own time is known."""
    passes = StampPasses(_SPIN, 50, cold=cold)
    kernel = []
    for _ in range(PASSES):
        passes.take()
        kernel.append(statistics.median(profile_calls(_SPIN, 50, cold=cold).busy))
    return {
        "stamps_of_spin": statistics.median(passes.row["stamps"]),
        "kernel_of_spin": statistics.median(kernel),
    }


class MethodPasses:
    def __init__(
        self, call: Call, method: Method, cache: Cache, count: int, *, warmup: int = 3
    ) -> None:
        self._method = method
        # As the other passes take the GPU, and where the truth's tensors are.
        options = {**AS_IS, **counted(1, count), "method": method, "cache": cache}
        self._measure = functools.partial(time_op, call, warmup=warmup, **options)
        self.row: results.Row = {"median": [], "midmean": [], "span": []}

    def take(self) -> None:
        if "reason" in self.row:
            return
        try:
            measurement = self._measure()
        except (RuntimeError, ValueError) as error:
            self.row = {"reason": first_line(error)}
            return
        if measurement.method != self._method:
            self.row = {"reason": measurement.method.reason or f"was {measurement.method}"}
            return
        self.row["median"].append(measurement.median)
        self.row["midmean"].append(midmean(measurement.seconds))
        if measurement.span_seconds:
            self.row["span"].append(statistics.median(measurement.span_seconds))
