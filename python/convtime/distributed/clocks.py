"""One clock for all ranks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from convtime.distributed.meeting import Meeting, _Wait

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
        return local + self._first.nanoseconds + share * self._drift

    def local(self, common: float) -> float:
        """Reverse :meth:`common`, for a present time."""
        return common - (self.common(now()) - now())

    @property
    def _drift(self) -> float:
        return self._last.nanoseconds - self._first.nanoseconds


def is_shared(meeting: Meeting) -> bool:
    """Return whether all ranks read the same clock: they run on one machine."""
    return len({process.clock for process in meeting.processes}) == 1


def offset_of(meeting: Meeting) -> Offset:
    """Return the offset of rank 0's clock; every rank has to call this.

    On one machine, processes read the same clock. Others exchange time stamps with rank 0 through
    the store, one after the other: a stamp of rank 0 lies between the two stamps of each round
    trip, which bounds the offset from both sides.
    """
    if is_shared(meeting):
        return Offset(now(), 0.0, _READING_SECONDS)
    found = Offset(now(), 0.0, _READING_SECONDS)
    own = meeting.processes[0].clock
    for rank, process in enumerate(meeting.processes):
        if process.clock != own and meeting.rank in (0, rank):
            found = _exchange(meeting, rank)
    meeting.gather("the clocks are compared", None)
    return found


def _exchange(meeting: Meeting, rank: int) -> Offset:
    keys = [
        (f"clock/{rank}/{number}/asked", f"clock/{rank}/{number}/told")
        for number in range(_ROUND_TRIPS)
    ]

    def tell(store: Store, wait: _Wait) -> list[tuple[int, int, int]]:
        for asked, told in keys:
            wait([asked])
            store.set(told, str(now()))
        return []

    def ask(store: Store, wait: _Wait) -> list[tuple[int, int, int]]:
        found = []
        for asked, told in keys:
            sent = now()
            store.set(asked, "")
            wait([told])
            found.append((sent, now(), int(store.get(told))))
            store.delete_key(asked)
            store.delete_key(told)
        return found

    trips: list[tuple[int, int, int]] = meeting.run(tell if meeting.rank == 0 else ask)
    return bounded(trips) if trips else Offset(now(), 0.0, _READING_SECONDS)


def bounded(trips: Sequence[tuple[int, int, int]]) -> Offset:
    """Return the offset that round trips allow.

    Args:
        trips: for each, the times of this process's clock before and after, and the other clock's
            time in between; in nanoseconds.
    """
    low = max(told - after for _, after, told in trips)
    high = min(told - before for before, _, told in trips)
    # If the clocks drift between the round trips, the bounds can cross by a little.
    half = abs(high - low) / 2
    return Offset(trips[-1][1], (low + high) / 2, 1e-9 * half + _READING_SECONDS)
