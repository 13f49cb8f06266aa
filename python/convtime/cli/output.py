"""What commands print to standard output."""

from __future__ import annotations

import os
import sys

from convtime.core.errors import InputError


def print_result(text: str) -> None:
    """Prints a command's result.

    Raises:
        InputError: Standard output cannot be written; a reader that went away is no error.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        # Python would try again when it exits, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that went away, e.g. `head`, has seen enough.
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output cannot be written ({error.strerror})") from error
