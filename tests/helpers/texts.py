"""What results print, for tests that look for a fact in it."""

from __future__ import annotations

from typing import Protocol


class Shown(Protocol):
    def details(self) -> str: ...


def flat(result: Shown) -> str:
    """A result's details on one line, with one space between any two words."""
    return " ".join(result.details().split())
