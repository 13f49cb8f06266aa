"""Supervision of a timing: its log and its time limit."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any

from convtime.core.load import _C
from convtime.timing.batch_record import BatchRecord
from convtime.timing.options import Options

Log = Callable[[BatchRecord], object]

_watcher: Callable[[Options], AbstractContextManager[Log]] | None = None


class TimeLimit:
    """Time limit of a timing, starting now.

    Args:
        seconds: duration; None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._end = monotonic() + self._seconds

    @classmethod
    def of(cls, timeout: float | None) -> TimeLimit:
        """Return the limit for a call's ``timeout``, which may be a number of any type."""
        return cls(None if timeout is None else float(timeout))

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit; negative after it."""
        return self._end - monotonic()

    @property
    def is_finite(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self._seconds)

    def check(self, cause: str = "") -> None:
        """Raise a TimeoutError that names the cause if the limit has passed."""
        if self.seconds_left <= 0:
            raise self._error(cause)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Translate the core's error for a limit that passed before the first sample."""
        try:
            yield
        except _C.DeadlineError as error:
            raise self._error(str(error).partition(": ")[2]) from None

    def _error(self, cause: str) -> TimeoutError:
        why = f" ({cause})" if cause else ""
        return TimeoutError(
            f"timeout={self._seconds:g} s passed before there was a sample{why}; allow more time"
        )


def log_of(log: Log) -> Callable[[dict[str, Any]], object]:
    """Return the function that the core calls after each batch to log it."""
    numbers = itertools.count(1)
    return lambda fields: log(BatchRecord(number=next(numbers), **fields))


def watch_with(watcher: Callable[[Options], AbstractContextManager[Log]] | None) -> None:
    """Set the function that makes a log for each timing without one; None to unset it."""
    global _watcher
    _watcher = watcher


@contextlib.contextmanager
def watched(options: Options) -> Iterator[Options]:
    """Return a timing's options, with the watcher's log if they have none."""
    if _watcher is None or options.log is not None:
        yield options
        return
    with _watcher(options) as log:
        yield dataclasses.replace(options, log=log)
