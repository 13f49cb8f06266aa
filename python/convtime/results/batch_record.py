"""How a batch of calls went, told while a timing runs."""

from __future__ import annotations

import dataclasses

from convtime.results.units import format_seconds


@dataclasses.dataclass(frozen=True)
class BatchRecord:
    """One batch: calls that were issued together, rounds of one call of each candidate.

    Attributes:
        number: of the batch, from 1.
        phase: ``warm-up`` (whose last batches may be samples, too) or ``sampling``.
        rounds: how many.
        held: whether the queue was held until all calls were issued; None where it was not to be.
        fate: what became of its samples, and of earlier ones: ``kept``, ``set aside`` and so on.
        gap_seconds: for how long the GPU was left idle before it.
        idle_clock_hz: the multiprocessors' clock at the end of that; None where it is not known.
        lowest_clock_hz: the lowest clock of its calls, likewise.
        highest_clock_hz: the highest one.
        issue_seconds: what the host took to issue its calls.
        wall_seconds: from the first call's issue until all were done.
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
