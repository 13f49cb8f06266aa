"""Import and run the user's code, and report its failures in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from convtime.core.errors import InputError, first_line


def import_from_working_directory() -> None:
    """Add the working directory to the import path, which a console script's path lacks."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())


def attempt(what: str, step: Callable[[], Any], advice: str = "") -> Any:
    """Run a step of the user's code.

    Raises:
        InputError: the step raised an exception or exited; the message is one line and ends with
            the advice.
    """
    try:
        return step()
    except (Exception, SystemExit) as error:
        tail = f"; {advice}" if advice else ""
        raise InputError(f"{what} raised {first_line(error)}{tail}") from error
