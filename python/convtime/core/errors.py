"""Errors caused by user input, and one-line descriptions of exceptions."""

from __future__ import annotations


class InputError(ValueError):
    """User input cannot be used; the message is one sentence for the user."""


class MissingPackageError(InputError, ImportError):
    """An optional package is missing; the message says how to install it."""


class InputWarning(UserWarning):
    """Part of the user's input is ignored; the message is one sentence for the user."""


def one_line(error: BaseException) -> str:
    """Return an exception's message on one line."""
    return " ".join(str(error).split())


def why(error: Exception) -> str:
    """Return why a path cannot be used, in the system's words if the error has them."""
    return getattr(error, "strerror", None) or one_line(error)


def first_line(error: BaseException) -> str:
    """Return an exception's type and its message's first line; PyTorch's messages are long."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def shown(name: str) -> str:
    """Quote, escape and shorten a user-supplied name for a message."""
    return repr(name if len(name) <= 80 else name[:79] + "…")
