"""What commands print."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from convtime.core.errors import InputError


def deliver(outputs: Sequence[Callable[[], None]]) -> None:
    """Makes every output, whichever of those before it failed.

    Raises:
        InputError: Says of each that failed why.
    """
    failures: list[str] = []

    def make(output: Callable[[], None]) -> None:
        try:
            output()
        except InputError as error:
            failures.append(str(error))

    with contextlib.ExitStack() as stack:  # goes on after any other exception too
        for output in reversed(outputs):
            stack.callback(make, output)
    if failures:
        raise InputError("; ".join(failures))


def print_result(text: str) -> None:
    """Prints a command's result.

    Raises:
        InputError: Standard output cannot be written; a reader that went away is no error.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _discard(sys.stdout)
        # A reader that went away, e.g. `head`, has seen enough.
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output cannot be written ({error.strerror})") from error


def print_error(text: str) -> None:
    """Prints a line to standard error; where that cannot be written, nobody can be told."""
    if sys.stderr is None:  # closed, and print would take standard output instead
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Drops what a stream could not write: Python would try again when it exits, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
