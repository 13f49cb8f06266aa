"""The calls of this rank, on which all ranks agree: when they begin, and when they ended."""

from __future__ import annotations

import bisect
import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from convtime.core.load import _C
from convtime.distributed.clocks import CommonClock, Timestamps, now
from convtime.distributed.coordination import Coordinator
from convtime.timing.candidate import Candidate, timed_part

_SPIN_SECONDS = 200e-6  # before an instant; until then, the processor is free for others
_PITCH = 1.1  # calls begin at this multiple of the expected time, plus the next
_PITCH_SECONDS = 30e-6


@dataclasses.dataclass(frozen=True)
class Stamps:
    """The calls of one candidate in a batch, in nanoseconds of this process's clock.

    Attributes:
        begin: begin of each call.
        arrival: when its first collective began; NaN if there was none.
        end: end of each call.
    """

    begin: list[float]
    arrival: list[float]
    end: list[float]


class Calls:
    """Wraps candidates: their calls are stamped, and can begin at instants that all ranks know.

    Attributes:
        candidates: the wrapped candidates.

    Args:
        candidates: the candidates to time.
        timestamps: timestamps of the device on which they work.
        collectives: stamps of this process's collectives, on its host.
        on_gpu: whether a call's collective begins on a GPU: then its arrival is the begin of the
            call, since the host only issues it.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        timestamps: Timestamps,
        collectives: _C.CollectiveStamps,
        *,
        on_gpu: bool,
    ) -> None:
        self._timestamps = timestamps
        self._collectives = collectives
        self._on_gpu = on_gpu
        self._marked: list[list[tuple[Any, Any]]] = [[] for _ in candidates]
        self._costs: list[list[float]] = [[] for _ in candidates]
        self._ended = len(candidates)  # each was called once already, to find its communication
        self._next: float | None = None  # by this process's clock
        self._pitches = [0.0] * len(candidates)
        self.candidates = [self._wrap(*each) for each in enumerate(candidates)]

    def progress(self) -> tuple[int, int]:
        """Return the number of calls that ended, and of collectives that began."""
        return self._ended, self._collectives.count()

    def costs(self) -> list[float]:
        """Return the usual duration of each candidate's last calls in seconds, waits excluded."""
        costs = [sorted(each)[9 * len(each) // 10] if each else 0.0 for each in self._costs]
        self._costs = [[] for _ in self._costs]
        return costs

    def begin(self, instant: float | None, costs: Sequence[float]) -> None:
        """Begin a batch.

        Args:
            instant: when the first call begins, in nanoseconds of this process's clock; None to
                begin as soon as possible.
            costs: the expected duration of each candidate's calls, in seconds: later calls begin at
                the sum of those before.
        """
        self._marked = [[] for _ in self._marked]
        self._collectives.take()
        self._timestamps.begin()
        self._next = instant
        self._pitches = [1e9 * (_PITCH * cost + _PITCH_SECONDS) for cost in costs]

    def take(self) -> list[Stamps]:
        """Return the stamps of each candidate's calls since begin(); the device is idle."""
        collectives = sorted(self._collectives.take())
        stamps = []
        for marked in self._marked:
            begins = self._timestamps.times([begin for begin, _ in marked])
            marked_ends = self._timestamps.times([end for _, end in marked])
            ends = [
                max(begin, end - self._timestamps.excess)
                for begin, end in zip(begins, marked_ends, strict=True)
            ]
            arrivals = (
                begins
                if self._on_gpu
                else [_first_within(collectives, *each) for each in zip(begins, ends, strict=True)]
            )
            stamps.append(Stamps(begins, arrivals, ends))
        return stamps

    def _wrap(self, index: int, candidate: Candidate) -> Candidate:
        candidate = timed_part(candidate)
        fn, prepare, mark = candidate.fn, candidate.before, self._timestamps.mark
        entered = [0, 0]

        def before() -> None:
            entered[0] = now()
            if prepare is not None:
                prepare()
            entered[1] = now()
            if self._next is not None:
                wait_until(self._next)
                self._next += self._pitches[index]

        def call(*args: Any, **kwargs: Any) -> object:
            began = now()
            begin = mark()
            result = fn(*args, **kwargs)
            self._marked[index].append((begin, mark()))
            self._ended += 1
            self._costs[index].append(1e-9 * (now() - began + entered[1] - entered[0]))
            return result

        return candidate.but(fn=call, before=before)


def wait_until(instant: float) -> None:
    """Wait for a time of this process's clock, in nanoseconds."""
    left = 1e-9 * (instant - now()) - _SPIN_SECONDS
    if left > 0:
        time.sleep(left)
    while now() < instant:
        os.sched_yield()  # another rank may need this core


def _first_within(times: Sequence[int], begin: float, end: float) -> float:
    first = bisect.bisect_left(times, begin)
    return float(times[first]) if first < len(times) and times[first] <= end else math.nan


def kernels_communicate(name: str) -> bool:
    """Whether a kernel is of communication, by its name."""
    return any(part in name.lower() for part in ("nccl", "symm_mem", "multimem"))


_LEAST_MARGIN = 200e-6  # seconds between the agreement on an instant and the instant
_LAST_SHARE = 0.05  # of the timeout, in which a failure is told to all ranks


@dataclasses.dataclass(frozen=True)
class OwnBatch:
    """This rank's part of a batch.

    Attributes:
        seconds: samples of each candidate.
        stamps: stamps of each candidate's calls.
    """

    seconds: list[list[float]]
    stamps: list[Stamps]


class BatchAgreement:
    """Agrees with the other ranks on each batch: ``BatchAgreement`` of csrc/timing/supervision.h.

    Attributes:
        batches: this rank's part of each batch of the sampler's present run.

    Args:
        coordinator: the ranks.
        clock: the common clock.
        calls: this rank's calls.
        limit: limits the time of the group's next operations, in seconds.
        aligned: whether calls begin at common instants. Otherwise only the queues of the GPUs are
            released together.
        timeout: seconds that the measurement may take.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: CommonClock,
        calls: Calls,
        limit: Callable[[float], None],
        *,
        aligned: bool,
        timeout: float,
    ) -> None:
        self.batches: list[OwnBatch] = []
        self._coordinator = coordinator
        self._clock = clock
        self._calls = calls
        self._limit = limit
        self._aligned = aligned
        self._reserve = _LAST_SHARE * timeout
        self._lateness = _LEAST_MARGIN / 2

    def begin(self, tick_seconds: float) -> float:
        """Return the longest tick of the ranks' clocks; a run of the sampler begins."""
        self.batches.clear()
        ticks: list[float] = self._coordinator.gather("the sampling begins", tick_seconds)
        return max(ticks)

    def rounds(self, proposed: int) -> int:
        """Return the smallest number of rounds that a rank proposes, and begin the batch."""
        self._limit(self._coordinator.seconds_left - self._reserve)
        answers, instant = self._agree("a batch begins", [proposed, self._calls.costs()])
        costs = [max(each) for each in zip(*(costs for _, costs in answers), strict=True)]
        self._calls.begin(instant if self._aligned else None, costs)
        return int(min(rounds for rounds, _ in answers))

    def release(self) -> None:
        """Wait until all ranks have issued their calls; return at the same instant."""
        _, instant = self._agree("the queues are released", None)
        wait_until(instant)

    def share(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with the longest samples, and every fault, of all ranks."""
        self.batches.append(OwnBatch(batch["seconds"], self._calls.take()))
        everyone = self._coordinator.gather("a batch ends", batch)
        return {
            "seconds": [
                [max(samples) for samples in zip(*candidate, strict=True)]
                for candidate in zip(*(each["seconds"] for each in everyone), strict=True)
            ],
            "fault": next((each["fault"] for each in everyone if each["fault"]), ""),
            "held": all(each["held"] for each in everyone),
            "hold_given_up": any(each["hold_given_up"] for each in everyone),
            "unordered": any(each["unordered"] for each in everyone),
            "elapsed_seconds": max(each["elapsed_seconds"] for each in everyone),
            "time_is_up": any(each["time_is_up"] for each in everyone),
        }

    def _agree(self, label: str, value: Any) -> tuple[list[Any], float]:
        """Gather values, and agree on an instant that every rank learns of in time."""
        sent = self._clock.common(now())
        answers = self._coordinator.gather(label, [value, sent, self._lateness])
        last = max(sent for _, sent, _ in answers)
        margin = max(_LEAST_MARGIN, 2 * max(lateness for _, _, lateness in answers))
        self._lateness = max(self._lateness / 2, 1e-9 * (self._clock.common(now()) - last))
        return [each for each, _, _ in answers], self._clock.local(last + 1e9 * margin)
