"""What to do about the time that something takes, and what it would save."""

from __future__ import annotations

import dataclasses

from convtime.results.units import format_seconds


@dataclasses.dataclass(frozen=True)
class Advice:
    """One thing to do.

    Attributes:
        text: what to do, as a command.
        seconds: what a call took with it; None where it was not tried.
        instead_of: what a call took without it, measured beside it; None likewise.
        note: what else changes with it, such as the result; empty where nothing does.
    """

    text: str
    seconds: float | None = None
    instead_of: float | None = None
    note: str = ""

    @property
    def saved(self) -> float | None:
        """Seconds that a call takes less with it, below 0 where it takes more."""
        if self.seconds is None or self.instead_of is None:
            return None
        return self.instead_of - self.seconds

    def __str__(self) -> str:
        told = f"{self.text}; {self.note}" if self.note else self.text
        if self.saved is None or self.seconds is None or self.instead_of is None:
            return told
        verb = "saves" if self.saved >= 0 else "costs"
        return (
            f"{told} ({verb} {format_seconds(abs(self.saved))} of "
            f"{format_seconds(self.instead_of)} here)"
        )
