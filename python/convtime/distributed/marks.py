"""Marks of moments on a device: read when the device has passed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from convtime.distributed.clocks import now

_READINGS = 10
_EVENT_TICK_SECONDS = 0.5e-6  # resolution of CUDA's events


class Marks(Protocol):
    """Makes marks, and tells their times by this process's clock.

    Attributes:
        uncertainty: bound of the error of a time, in seconds.
    """

    uncertainty: float

    def begin(self) -> None:
        """Begin a batch; the device is idle."""

    def mark(self) -> Any:
        """Mark the present moment of the device's work."""

    def times(self, marks: Sequence[Any]) -> list[float]:
        """Return the times of marks since begin(), in nanoseconds; the device is idle again."""


class HostMarks:
    """Marks of the host's work, which are times."""

    uncertainty = 0.0

    def begin(self) -> None:
        pass

    def mark(self) -> int:
        return now()

    def times(self, marks: Sequence[Any]) -> list[float]:
        return [float(mark) for mark in marks]


class EventMarks:
    """Marks of a GPU's work: CUDA events on the current stream.

    At each batch, an event on the idle GPU, between two readings of the host's clock, relates
    events to the host's clock. The closest of several such pairs counts.

    Args:
        make_event: creates an event.
    """

    def __init__(self, make_event: Any = None) -> None:
        self._make = make_event or (lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._unused: list[Any] = []
        self._origin: tuple[Any, float] | None = None
        self.uncertainty = 0.0

    def begin(self) -> None:
        """Relate events to the host's clock."""
        best = None
        for _ in range(_READINGS):
            event = self._make()
            before = now()
            event.record()
            event.synchronize()
            after = now()
            if best is None or after - before < best[0]:
                best = after - before, event, (before + after) / 2
        assert best is not None
        self._origin = best[1], best[2]
        self.uncertainty = max(self.uncertainty, 1e-9 * best[0] / 2 + _EVENT_TICK_SECONDS)

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
