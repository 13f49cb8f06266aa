"""Wait for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Met = TypeVar("Met")


def wait_until(condition: Callable[[], Met], seconds: float = 60) -> Met:
    """Wait until a condition is true, and return its value; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not (met := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.001)
    return met
