"""Errors that users cause, and exceptions told in one line."""

from __future__ import annotations


class InputError(ValueError):
    """Something given by the user cannot be used; the text is one sentence for them."""


class InputWarning(UserWarning):
    """Part of something given by the user is left out; the text is one sentence for them."""


def one_line(error: BaseException) -> str:
    """An exception's text in one line."""
    return " ".join(str(error).split())


def why(error: Exception) -> str:
    """Why a path cannot be used, in the system's words where it was asked."""
    return getattr(error, "strerror", None) or one_line(error)


def first_line(error: BaseException) -> str:
    """An exception's type and the first line of its text, since PyTorch's errors run over many."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def shown(name: str) -> str:
    """A name that was given, for a sentence: quoted, escaped and not too long."""
    return repr(name if len(name) <= 80 else name[:79] + "…")
