"""Progress record of a batch of calls, logged while a timing runs."""

from __future__ import annotations

import dataclasses

from convtime.view.wording import format_seconds


@dataclasses.dataclass(frozen=True)
class BatchRecord:
    """One batch of calls that were issued together: rounds of one call per candidate.

    Attributes:
        number: number of the batch, from 1.
        phase: ``warm-up`` (its last batches may also become samples) or ``sampling``.
        rounds: number of rounds.
        held: whether the queue was held until all calls were issued; None if no hold was requested.
        fate: use of its samples and of earlier ones: ``kept``, ``set aside`` and so on.
        gap_seconds: time for which the GPU was idle before the batch.
        idle_clock_hz: the SM clock at the end of that gap; None if it is unknown.
        lowest_clock_hz: the lowest SM clock of its calls; None if it is unknown.
        highest_clock_hz: the highest SM clock of its calls; None if it is unknown.
        issue_seconds: host time to issue its calls.
        wall_seconds: time from the first call's issue until all calls were done.
    """

    number: int
    phase: str
    rounds: int
    held: bool | None
    fate: str
    gap_seconds: float
    idle_clock_hz: float | None
    lowest_clock_hz: float | None
    highest_clock_hz: float | None
    issue_seconds: float
    wall_seconds: float

    def __str__(self) -> str:
        held = {None: "", True: ", held", False: ", not held"}[self.held]
        facts = [f"batch {self.number} ({self.phase}): {self.rounds} rounds{held}, {self.fate}"]
        if self.gap_seconds:
            idle_hz = self.idle_clock_hz
            then = "" if idle_hz is None else f", then at {idle_hz / 1e6:.0f} MHz"
            facts.append(f"idle for {format_seconds(self.gap_seconds)}{then}")
        if self.lowest_clock_hz is not None and self.highest_clock_hz is not None:
            lowest, highest = self.lowest_clock_hz / 1e6, self.highest_clock_hz / 1e6
            facts.append(f"clock {lowest:.0f} .. {highest:.0f} MHz")
        facts.append(f"issued in {format_seconds(self.issue_seconds)}")
        facts.append(f"done after {format_seconds(self.wall_seconds)}")
        return "; ".join(facts)
