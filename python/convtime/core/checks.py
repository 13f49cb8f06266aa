"""Checks of arguments. Each failure is one sentence: the name, what is allowed, and the value."""

from __future__ import annotations

import itertools
import reprlib
import sys
from collections.abc import Iterable
from types import NoneType
from typing import SupportsIndex

from convtime.core.errors import InputError


def require(holds: object, sentence: str) -> None:
    """Raise InputError with this sentence unless the condition holds.

    The sentence is made in any case: where it shows a value that may be a tensor, whose values it
    would wait for, raise the error in an ``if`` instead.
    """
    if not holds:
        raise InputError(sentence)


def check_one_of(name: str, value: object, allowed: Iterable[object], advice: str = "") -> None:
    """Raise InputError unless the value is one of those allowed."""
    options = tuple(allowed)
    try:
        is_allowed = value in options
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor, which has no one answer
        is_allowed = False
    if not is_allowed:
        names = ", ".join(map(repr, options))
        raise InputError(f"{name} must be one of {names}, got {described(value)}{advice}")


def check_type(name: str, value: object, types: type | tuple[type, ...], expected: str) -> None:
    """Raise TypeError unless the value is an instance of the types, which ``expected`` names."""
    if not isinstance(value, types):
        raise TypeError(f"{name} must be {expected}, got {described(value)}")


def check_whole(name: str, value: object, least: int = 0, most: int = sys.maxsize) -> int:
    """Return a whole number as an int; raise InputError unless it lies between two limits."""
    number = as_whole(value)
    if number is None or not least <= number <= most:
        limits = f", {least} or more" if most == sys.maxsize else f" from {least} to {most}"
        raise InputError(f"{name} must be a whole number{limits}, got {described(value)}")
    return number


def check_share(name: str, value: object, *, or_zero: bool = False) -> None:
    """Raise InputError unless the value is a number above 0, or also 0, and below 1."""
    if not (is_finite(value) and (0 < value < 1 or (or_zero and value == 0))):  # type: ignore[operator]
        least = "0 or more" if or_zero else "above 0"
        raise InputError(f"{name} must be a share, {least} and below 1, got {described(value)}")


def as_whole(value: object) -> int | None:
    """The value as an int if it is a whole number of any type, but not True or False."""
    try:
        is_number = isinstance(value, SupportsIndex) and not isinstance(value, bool)
        return value.__index__() if is_number else None  # type: ignore[attr-defined]
    except TypeError:  # of tensors and arrays, of which only some can be an index
        return None


def is_finite(value: object) -> bool:
    """Whether the value is a finite number of any type, but not a string, True or False."""
    try:
        return not isinstance(value, str | bytes | bool) and abs(float(value)) < float("inf")  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def described(value: object) -> str:
    """A value in a sentence, shortened; of tensors, modules and other objects their type alone."""
    return reprlib.repr(value) if _is_plain(value) else f"a {type(value).__name__}"


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_plain, itertools.islice(value, 10)))
    scalars = (str, bytes, bool, int, float, complex, type, NoneType)
    return isinstance(value, scalars) or type(value).__name__ in ("dtype", "device")
