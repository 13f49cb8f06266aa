"""What keeps a timing in sight and in bounds: its log, and a limit to the time that it takes."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from convtime.core.load import _C
from convtime.results.batch_record import BatchRecord


class TimeLimit:
    """The time from now in which a timing is to end.

    Args:
        seconds: how long; None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._end = time.monotonic() + self._seconds

    @classmethod
    def of(cls, timeout: float | None) -> TimeLimit:
        """The one that a call's ``timeout`` asks for, of whatever type its number is."""
        return cls(None if timeout is None else float(timeout))

    @property
    def seconds_left(self) -> float:
        """Below 0 once it has passed."""
        return self._end - time.monotonic()

    def check(self, cause: str = "") -> None:
        """Raises a TimeoutError, which names the cause, where the limit has passed."""
        if self.seconds_left <= 0:
            raise self._error(cause)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Where the core finds that the limit has passed without a sample, says so in our words."""
        try:
            yield
        except _C.DeadlineError as error:
            raise self._error(str(error).partition(": ")[2]) from None

    def _error(self, cause: str) -> TimeoutError:
        why = f" ({cause})" if cause else ""
        return TimeoutError(
            f"timeout={self._seconds:g} s passed before there was a sample{why}; allow more time"
        )


def log_of(log: Callable[[BatchRecord], object]) -> Callable[[dict[str, Any]], object]:
    """What the core calls behind each batch, to have it logged."""
    numbers = itertools.count(1)
    return lambda fields: log(BatchRecord(number=next(numbers), **fields))
