"""Text that is safe to print, and numbers with their nouns."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 2000  # characters that a page shows of a text, since a name can have megabytes


def printable(text: str) -> str:
    """Escape characters that would control a terminal or break a line."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shortened(text: str) -> str:
    """Return :func:`printable` text; of a long one the beginning, and its length."""
    shown = printable(text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown}… ({len(text):,} characters)"


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun, e.g. "1 pass" or "2,000 passes"; by default with an "s"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return names separated by commas; of many, the first ones and the number of the others."""
    every = list(names)
    others = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + others
