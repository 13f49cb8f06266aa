"""Marks of moments on a device: read when the device has passed them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from convtime.distributed.clocks import now

_READINGS = 10
_EVENT_TICK_SECONDS = 0.5e-6  # resolution of CUDA's events
_KNOWN_NS = 10_000
_HELD_NS = 2_000_000  # which is enough to issue all readings


class Marks:
    """Marks of moments, and their times by this process's clock; these are of the host's work.

    Attributes:
        uncertainty: bound of the error of a time, in seconds.
        excess: by how many nanoseconds two marks around work are further apart than it takes.
    """

    uncertainty = 0.0
    excess = 0.0

    def begin(self) -> None:
        """Begin a batch; the device is idle."""

    def mark(self) -> Any:
        """Mark the present moment of the device's work."""
        return now()

    def times(self, marks: Sequence[Any]) -> list[float]:
        """Return the times of marks since begin(), in nanoseconds; the device is idle again."""
        return [float(mark) for mark in marks]


class EventMarks(Marks):
    """Marks of a GPU's work: CUDA events on the current stream.

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
            self.excess = self._measured_excess()
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

    def _measured_excess(self) -> float:
        self._spin(_HELD_NS)
        pairs = []
        for _ in range(_READINGS):
            begin, end = self._make(), self._make()
            begin.record()
            self._spin(_KNOWN_NS)
            end.record()
            pairs.append((begin, end))
        pairs[-1][1].synchronize()
        found: float = statistics.median(1e6 * begin.elapsed_time(end) for begin, end in pairs)
        return max(0.0, found - _KNOWN_NS)

    def mark(self) -> Any:
        """Record an event on the current stream."""
        event = self._unused.pop() if self._unused else self._make()
        event.record()
        return event

    def times(self, marks: Sequence[Any]) -> list[float]:
        """Return the events' times; the events are used again."""
        assert self._origin is not None
        event, nanoseconds = self._origin
        found = [nanoseconds + 1e6 * event.elapsed_time(mark) for mark in marks]
        self._unused.extend(marks)
        return found
