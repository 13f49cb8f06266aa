"""One clock for all ranks, and the times of moments of a device's work."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from convtime.distributed.coordination import Coordinator, Wait

#: Round trips in one exchange; the bounds of all of them hold together.
_ROUND_TRIPS = 40

#: Of a reading, and of the synchronization between a machine's cores.
_READING_SECONDS = 1e-7


def now() -> int:
    """Return the nanoseconds of this process's monotonic clock, which the core reads, too."""
    return time.monotonic_ns()


@dataclasses.dataclass(frozen=True)
class Offset:
    """How far the common clock is ahead of this process's clock, at one moment.

    Attributes:
        at: time of this process's clock, in nanoseconds.
        nanoseconds: the offset.
        uncertainty: bound of its error in either direction, in seconds.
    """

    at: int
    nanoseconds: float
    uncertainty: float


class CommonClock:
    """The clock of rank 0, as this rank knows it from one or two exchanges.

    Args:
        first: the offset before the measurement.
        last: the offset after it. Between the two, the offset changes linearly.
    """

    def __init__(self, first: Offset, last: Offset | None = None) -> None:
        self._first = first
        self._last = last or first

    @property
    def uncertainty(self) -> float:
        """Bound of the error of a common time, in seconds."""
        return max(self._first.uncertainty, self._last.uncertainty)

    def common(self, local: float) -> float:
        """Return the common time of a time of this process's clock; both in nanoseconds."""
        span = self._last.at - self._first.at
        share = (local - self._first.at) / span if span > 0 else 0.0
        drift = self._last.nanoseconds - self._first.nanoseconds
        return local + self._first.nanoseconds + share * drift

    def local(self, common: float) -> float:
        """Reverse :meth:`common`, for a present time."""
        return common - (self.common(now()) - now())


def is_shared(coordinator: Coordinator) -> bool:
    """Return whether all ranks read the same clock: they run on one machine."""
    return len({process.clock for process in coordinator.processes}) == 1


def offset_of(coordinator: Coordinator) -> Offset:
    """Return the offset of rank 0's clock; every rank has to call this.

    On one machine, processes read the same clock. Others exchange time stamps with rank 0 through
    the store, one after the other: a stamp of rank 0 lies between the two stamps of each round
    trip, which bounds the offset from both sides.
    """
    if is_shared(coordinator):
        return Offset(now(), 0.0, _READING_SECONDS)
    offset = Offset(now(), 0.0, _READING_SECONDS)
    own = coordinator.processes[0].clock
    for rank, process in enumerate(coordinator.processes):
        if process.clock != own and coordinator.rank in (0, rank):
            offset = _exchange(coordinator, rank)
    coordinator.gather("the clocks are compared", None)
    return offset


def _exchange(coordinator: Coordinator, rank: int) -> Offset:
    keys = [
        (f"clock/{rank}/{number}/asked", f"clock/{rank}/{number}/answer")
        for number in range(_ROUND_TRIPS)
    ]

    def answer(store: Store, wait: Wait) -> list[tuple[int, int, int]]:
        for asked, answered in keys:
            wait([asked])
            store.set(answered, str(now()))
        return []

    def ask(store: Store, wait: Wait) -> list[tuple[int, int, int]]:
        trips = []
        for asked, answered in keys:
            sent = now()
            store.set(asked, "")
            wait([answered])
            trips.append((sent, now(), int(store.get(answered))))
            store.delete_key(asked)
            store.delete_key(answered)
        return trips

    trips: list[tuple[int, int, int]] = coordinator.run(answer if coordinator.rank == 0 else ask)
    return bound_offset(trips) if trips else Offset(now(), 0.0, _READING_SECONDS)


def bound_offset(trips: Sequence[tuple[int, int, int]]) -> Offset:
    """Return the offset that round trips allow.

    Args:
        trips: for each, the times of this process's clock before and after, and the other clock's
            time in between; in nanoseconds.
    """
    low = max(other - after for _, after, other in trips)
    high = min(other - before for before, _, other in trips)
    # If the clocks drift between the round trips, the bounds can cross by a little.
    half = abs(high - low) / 2
    return Offset(trips[-1][1], (low + high) / 2, 1e-9 * half + _READING_SECONDS)


_READINGS = 10
_EVENT_TICK_SECONDS = 0.5e-6  # resolution of CUDA's events
_KNOWN_NS = 10_000
_HELD_NS = 2_000_000  # which is enough to issue all readings


class Timestamps:
    """Timestamps by this process's clock; these are of the host's work.

    Attributes:
        uncertainty: bound of the error of a time, in seconds.
        excess: by how many nanoseconds two timestamps around work are further apart than it takes.
    """

    uncertainty = 0.0
    excess = 0.0

    def begin(self) -> None:
        """Begin a batch; the device is idle."""

    def mark(self) -> Any:
        """Mark the present moment of the device's work."""
        return now()

    def times(self, timestamps: Sequence[Any]) -> list[float]:
        """Return the times since begin(), in nanoseconds; the device is idle again."""
        return [float(each) for each in timestamps]


class EventTimestamps(Timestamps):
    """Timestamps of a GPU's work: CUDA events on the current stream.

    At each batch, an event on the idle GPU, between two readings of the host's clock, relates
    events to the host's clock. The closest of several such pairs counts. Kernels of known duration
    tell how long the gaps are that events include, before and after the work between them.

    Args:
        make_event: creates an event.
        spin: keeps the GPU busy for a number of nanoseconds.
    """

    def __init__(self, make_event: Any = None, spin: Callable[[int], object] | None = None) -> None:
        self._make = make_event or (lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._spin = spin or torch.ops.convtime.spin_ns
        self._unused: list[Any] = []
        self._origin: tuple[Any, float] | None = None

    def begin(self) -> None:
        """Relate events to the host's clock and, at first, measure their excess."""
        if self._origin is None:
            self.excess = self._measure_excess()
        before, after, event = min(
            (self._reading() for _ in range(_READINGS)), key=lambda each: each[1] - each[0]
        )
        self._origin = event, (before + after) / 2
        self.uncertainty = max(self.uncertainty, 1e-9 * (after - before) / 2 + _EVENT_TICK_SECONDS)

    def _reading(self) -> tuple[int, int, Any]:
        """Return an event on the idle GPU, after the times before and after it."""
        event = self._make()
        before = now()
        event.record()
        event.synchronize()
        return before, now(), event

    def _measure_excess(self) -> float:
        self._spin(_HELD_NS)
        pairs = []
        for _ in range(_READINGS):
            begin, end = self._make(), self._make()
            begin.record()
            self._spin(_KNOWN_NS)
            end.record()
            pairs.append((begin, end))
        pairs[-1][1].synchronize()
        apart: float = statistics.median(1e6 * begin.elapsed_time(end) for begin, end in pairs)
        return max(0.0, apart - _KNOWN_NS)

    def mark(self) -> Any:
        """Record an event on the current stream."""
        event = self._unused.pop() if self._unused else self._make()
        event.record()
        return event

    def times(self, timestamps: Sequence[Any]) -> list[float]:
        """Return the events' times; the events are used again."""
        assert self._origin is not None
        event, nanoseconds = self._origin
        times = [nanoseconds + 1e6 * event.elapsed_time(mark) for mark in timestamps]
        self._unused.extend(timestamps)
        return times
