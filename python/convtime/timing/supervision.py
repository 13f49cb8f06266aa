"""What keeps a timing in sight and in bounds: its log, and a limit to the time that it takes."""

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
from convtime.results.batch_record import BatchRecord
from convtime.timing.options import Options

Log = Callable[[BatchRecord], object]

_watcher: Callable[[Options], AbstractContextManager[Log]] | None = None


class TimeLimit:
    """The time from now in which a timing is to end.

    Args:
        seconds: how long; None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._end = monotonic() + self._seconds

    @classmethod
    def of(cls, timeout: float | None) -> TimeLimit:
        """The one that a call's ``timeout`` asks for, of whatever type its number is."""
        return cls(None if timeout is None else float(timeout))

    @property
    def seconds_left(self) -> float:
        """Below 0 once it has passed."""
        return self._end - monotonic()

    @property
    def is_finite(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self._seconds)

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


def log_of(log: Log) -> Callable[[dict[str, Any]], object]:
    """What the core calls after each batch, to have it logged."""
    numbers = itertools.count(1)
    return lambda fields: log(BatchRecord(number=next(numbers), **fields))


def watch_with(watcher: Callable[[Options], AbstractContextManager[Log]] | None) -> None:
    """Has each timing that has no log use the one that this makes for it; None for none."""
    global _watcher
    _watcher = watcher


@contextlib.contextmanager
def watched(options: Options) -> Iterator[Options]:
    """A timing's options, with a log where they have none and there is to be one."""
    if _watcher is None or options.log is not None:
        yield options
        return
    with _watcher(options) as log:
        yield dataclasses.replace(options, log=log)
