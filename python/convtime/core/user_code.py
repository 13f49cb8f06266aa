"""Code of the user's that is imported or run: where it is found, and how its failures are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from convtime.core.errors import InputError, first_line


def import_from_working_directory() -> None:
    """Has imports look into the working directory, too, which a console script's do not."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())


def attempt(what: str, step: Callable[[], Any], advice: str = "") -> Any:
    """Runs a step of the user's code.

    Raises:
        InputError: Whatever the step raised, a script's exit too, as one line, with the advice.
    """
    try:
        return step()
    except (Exception, SystemExit) as error:
        tail = f"; {advice}" if advice else ""
        raise InputError(f"{what} raised {first_line(error)}{tail}") from error
