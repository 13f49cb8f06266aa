"""What takes turns in the row of an operation: passes of the truth, and of each method."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from typing import Any

import results
import torch
from common.running import Call, first_line
from common.truth import Trace, profile_calls
from torch.profiler import ProfilerActivity, profile

from convtime import time_op
from convtime.timing.options import Cache, Method

PASSES = 3


class TruthPasses:
    """The profiler's traces, and what they add to the time between two events."""

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
            "kernels": statistics.mode(count for trace in self._traces for count in trace.kernels),
            "kernel": [statistics.median(trace.busy) for trace in self._traces],
            "span": [statistics.median(trace.spans) for trace in self._traces],
            "held": [trace.held for trace in self._traces],
        }


class _EventPasses:
    """Time between two events around a call, with and without the profiler."""

    def __init__(self, call: Call, count: int, *, cold: bool) -> None:
        self._call, self._count, self._cold = call, count, cold
        self._row: results.Row = {"untraced": [], "traced": []}

    def take(self) -> None:
        self._row["untraced"].append(self._median())
        with profile(activities=[ProfilerActivity.CUDA]):
            self._row["traced"].append(self._median())

    def _median(self) -> float:
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


class StampPasses:
    """What a call takes in a graph by stamps of the device's clock, untraced.

    With a cold cache, the time from a stamp before the call to one after it. With a warm one, as
    method graph has it, that of calls back to back, which hides part of their launches:
    by how much longer a series of more of them takes.
    """

    COLD_REPLAYS = 10
    MORE = 8  # calls that the second series of a warm graph has beyond the first's one

    def __init__(self, call: Call, count: int, *, cold: bool) -> None:
        self._row: results.Row = {"stamps": []}
        self._cold = cold
        series = (1, 1) if cold else (1, 1 + self.MORE)
        # With a warm cache, as many calls as the other passes make.
        self._replays = self.COLD_REPLAYS if cold else count // sum(series)
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
            self._row = {"reason": first_line(error)}

    def take(self) -> None:
        if "reason" in self._row:
            return
        nanoseconds: list[float] = []
        for _ in range(self._replays):
            self._graph.replay()
            torch.cuda.synchronize()
            first, second = (int(end[0] - spun[0, 1]) for spun, end in self._stamps)
            nanoseconds += [first, second] if self._cold else [(second - first) / self.MORE]
        self._row["stamps"].append(1e-9 * statistics.median(nanoseconds))

    def row(self) -> results.Row:
        return self._row


@functools.cache
def stamps_of_spin(cold: bool) -> results.Row:
    """What the stamps say of a kernel whose own time is known."""
    spin: Call = functools.partial(torch.ops.convtime.spin_ns, 5_000)
    passes = StampPasses(spin, 50, cold=cold)
    kernel = []
    for _ in range(PASSES):
        passes.take()
        kernel.append(statistics.median(profile_calls(spin, 50, cold=cold).busy))
    return {
        "stamps_of_spin": statistics.median(passes.row()["stamps"]),
        "kernel_of_spin": statistics.median(kernel),
    }


class MethodPasses:
    """One of convtime's methods, and what it says of itself."""

    def __init__(
        self, call: Call, method: Method, cache: Cache, count: int, *, warmup: int = 3
    ) -> None:
        self._call, self._method, self._cache, self._count = call, method, cache, count
        self._warmup = warmup
        self._row: results.Row = {name: [] for name in ("median", "midmean", "span", "queue")}
        self._row["overhead"] = []

    def take(self) -> None:
        if "reason" in self._row:
            return
        try:
            measurement = time_op(
                self._call,
                method=self._method,
                cache=self._cache,
                regime="as-is",  # as the other passes take the GPU
                placement="as-is",  # as the truth
                warmup=self._warmup,
                stop="count",
                min_samples=1,
                max_samples=self._count,
            )
        except (RuntimeError, ValueError) as error:
            self._row = {"reason": first_line(error)}
            return
        if measurement.method != self._method:
            self._row = {"reason": measurement.method.reason or f"was {measurement.method}"}
            return
        self._row["median"].append(measurement.median)
        self._row["midmean"].append(_midmean(measurement.seconds))
        self._row["queue"].append(measurement.queue.used)
        self._row["overhead"].append(measurement.overhead)
        if measurement.span_seconds:
            self._row["span"].append(statistics.median(measurement.span_seconds))

    def row(self) -> results.Row:
        return self._row


def _midmean(values: Sequence[float]) -> float:
    """Mean of the middle half: finer than the ticks that a median is a whole number of."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return statistics.fmean(ordered[quarter : len(ordered) - quarter])
