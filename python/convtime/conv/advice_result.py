"""Suggestions for reducing a time, with the time that they save."""

from __future__ import annotations

import dataclasses

from convtime.core.units import format_seconds


@dataclasses.dataclass(frozen=True)
class Advice:
    """One suggestion.

    Attributes:
        text: the suggestion, in the imperative.
        seconds: time of a call that follows it; None if it was not tried.
        instead_of: time of a call without it, measured next to the other; None if not tried.
        note: other effects, such as a changed result; empty for none.
    """

    text: str
    seconds: float | None = None
    instead_of: float | None = None
    note: str = ""

    @property
    def saved(self) -> float | None:
        """Seconds that it saves per call; negative if the call takes longer."""
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
