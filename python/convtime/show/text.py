"""Texts that are safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text with escapes for what would steer a terminal or break a line."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
