"""Check the arguments of nets and their trainer."""

from __future__ import annotations

from collections.abc import Iterable

from convtime.core.errors import InputError


def require(holds: bool, sentence: str) -> None:
    """Raise InputError with this sentence unless the condition holds."""
    if not holds:
        raise InputError(sentence)


def require_member(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise InputError unless the value is allowed."""
    names = ", ".join(map(str, allowed))
    require(value in allowed, f"{name} must be one of {names}; got {value!r}")
