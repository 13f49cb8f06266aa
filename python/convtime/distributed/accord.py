"""The ranks' agreement on each decision of the sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from convtime.distributed.calls import Calls, Stamps, wait_until
from convtime.distributed.clocks import CommonClock, now
from convtime.distributed.meeting import Meeting

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


class Accord:
    """What the core asks before and after each batch (csrc/timing/supervision.h).

    Attributes:
        batches: this rank's part of each batch of the sampler's present run.

    Args:
        meeting: the ranks.
        clock: the common clock.
        calls: this rank's calls.
        limit: limits the time of the group's next operations, in seconds.
        aligned: whether calls begin at common instants. Otherwise only the queues of the GPUs are
            released together.
        timeout: seconds that the measurement may take.
    """

    def __init__(
        self,
        meeting: Meeting,
        clock: CommonClock,
        calls: Calls,
        limit: Callable[[float], None],
        *,
        aligned: bool,
        timeout: float,
    ) -> None:
        self.batches: list[OwnBatch] = []
        self._meeting = meeting
        self._clock = clock
        self._calls = calls
        self._limit = limit
        self._aligned = aligned
        self._reserve = _LAST_SHARE * timeout
        self._lateness = _LEAST_MARGIN / 2

    def begin(self, tick_seconds: float) -> float:
        """Return the longest tick of the ranks' clocks; a run of the sampler begins."""
        self.batches.clear()
        ticks: list[float] = self._meeting.gather("the sampling begins", tick_seconds)
        return max(ticks)

    def rounds(self, proposed: int) -> int:
        """Return the smallest number of rounds that a rank proposes, and begin the batch."""
        self._limit(self._meeting.seconds_left - self._reserve)
        own = [proposed, self._calls.costs()]
        answers, instant = self._agree("a batch begins", own)
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
        everyone = self._meeting.gather("a batch ends", batch)
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
        answers = self._meeting.gather(label, [value, sent, self._lateness])
        last = max(sent for _, sent, _ in answers)
        margin = max(_LEAST_MARGIN, 2 * max(lateness for _, _, lateness in answers))
        self._lateness = max(self._lateness / 2, 1e-9 * (self._clock.common(now()) - last))
        return [each for each, _, _ in answers], self._clock.local(last + 1e9 * margin)
