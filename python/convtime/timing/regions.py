"""Regions of a program: named stretches that a recording tells apart, and NVTX shows to others."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])

# NVTX's functions do nothing unless a tool listens, and need no GPU.
_HAS_NVTX = torch.version.cuda is not None


class OpenEntry:
    """A region that a thread has entered while something recorded.

    Attributes:
        name: the region's.
        parent: the entry that it lies in, on the same thread.
        log: of the thread.
        place: of the entry among all of the recording's.
        start: when it was entered, in nanoseconds on the recording's clock.
        end: when it was left; -1 until then.
        host_start: likewise, on the host's own clock.
        host_end: likewise.
    """

    __slots__ = ("end", "host_end", "host_start", "log", "name", "parent", "place", "start")

    def __init__(self, name: str, parent: OpenEntry | None, log: ThreadLog) -> None:
        self.name = name
        self.parent = parent
        self.log = log
        self.place = -1
        self.start = self.end = -1
        self.host_start = self.host_end = -1


class ThreadLog:
    """Where one thread was, in the order of time.

    Attributes:
        log: the recording's.
        thread: the thread's number.
        times: when it entered or left a region.
        innermost: which region it was in from then on; None for none.
    """

    __slots__ = ("innermost", "log", "thread", "times")

    def __init__(self, log: RegionLog, thread: int) -> None:
        self.log = log
        self.thread = thread
        self.times: list[int] = []
        self.innermost: list[OpenEntry | None] = []


class RegionLog:
    """Where every thread of the process was.

    Attributes:
        entries: of regions, in the order in which they were entered.
        threads: a log for each thread that entered any, by the thread's number.
        names: of these threads.
        began: when it was made, in nanoseconds on the recording's clock.
        host_began: likewise, on the host's own clock.

    Args:
        clock: gives the time in nanoseconds, on the clock of the work that is recorded.
        thread_number: gives the calling thread's number, as that work has it.
    """

    def __init__(self, clock: Callable[[], int], thread_number: Callable[[], int]) -> None:
        self.entries: list[OpenEntry] = []
        self.threads: dict[int, ThreadLog] = {}
        self.names: dict[int, str] = {}
        self._clock = clock
        self._thread_number = thread_number
        self._adding = threading.Lock()
        self.host_began = time.perf_counter_ns()
        self.began = clock()

    def enter(self, name: str, around: OpenEntry | None) -> OpenEntry:
        """Notes that the calling thread enters a region within another."""
        if around is not None and around.log.log is not self:
            around = None  # it was entered while an earlier recording was under way
        log = around.log if around is not None else self._log_of_thread()
        entry = OpenEntry(name, around, log)
        entry.host_start = time.perf_counter_ns()
        entry.start = self._clock()
        with self._adding:  # stamped before, since the recording may end at any time
            entry.place = len(self.entries)
            self.entries.append(entry)
        log.innermost.append(entry)
        log.times.append(entry.start)
        return entry

    def leave(self, entry: OpenEntry) -> None:
        """Notes that the calling thread leaves a region."""
        entry.end = self._clock()
        entry.host_end = time.perf_counter_ns()
        entry.log.innermost.append(entry.parent)
        entry.log.times.append(entry.end)

    def _log_of_thread(self) -> ThreadLog:
        number = self._thread_number()
        with self._adding:
            if number not in self.threads:
                self.threads[number] = ThreadLog(self, number)
                self.names[number] = threading.current_thread().name
            return self.threads[number]


@dataclasses.dataclass(frozen=True)
class _Open:
    """A region that is open, with None for the entry where nothing recorded it."""

    region: Region
    entry: OpenEntry | None
    around: _Open | None


# The innermost one of a thread, and of an asynchronous task, which others' tasks run in between.
_innermost: contextvars.ContextVar[_Open | None] = contextvars.ContextVar(
    "convtime_region", default=None
)
_log: RegionLog | None = None


def current_log() -> RegionLog | None:
    """Of the recording that is under way."""
    return _log


def set_log(log: RegionLog | None) -> None:
    """Has regions be noted in a log from now on, or in none."""
    global _log
    _log = log


class Region(contextlib.ContextDecorator):
    """A named stretch of a program; see :func:`region`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> Region:
        if _HAS_NVTX:
            torch.cuda.nvtx.range_push(self._name)  # type: ignore[no-untyped-call]
        around, log = _innermost.get(), _log
        entry = None
        if log is not None:
            entry = log.enter(self._name, around.entry if around is not None else None)
        _innermost.set(_Open(self, entry, around))
        return self

    def __exit__(self, *_exception: object) -> None:
        """Leaves it, and before it those within it that an exception kept from being left."""
        found = None
        while (innermost := _innermost.get()) is not None and found is not self:
            found = innermost.region
            _innermost.set(innermost.around)
            entry = innermost.entry
            if entry is not None and entry.log.log is _log:  # else its recording has ended
                _log.leave(entry)
            if _HAS_NVTX:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    def __call__(self, function: _Function) -> _Function:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"a region cannot decorate {function.__name__}, a generator, whose caller runs in "
                "between; use it as `with` inside"
            )
        if not inspect.iscoroutinefunction(function):
            decorated: _Function = super().__call__(function)
            return decorated

        @functools.wraps(function)
        async def within(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return within  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"convtime.region({self._name!r})"


def region(name: str) -> Region:
    """Names a stretch of a program: what runs in it is told apart by :func:`convtime.record`.

    To be used as ``with convtime.region("name"):``, or to decorate a function, which may be a
    coroutine's, but not a generator's. Regions may lie in each other, be entered any number of
    times, on any thread and in any asynchronous task. The same name is pushed as an
    NVTX range, so that Nsight Systems and others show it. Where nothing records, that is all it
    does.

    Raises:
        TypeError: for a name that is no text, and to decorate a generator function.
    """
    if not isinstance(name, str):
        raise TypeError(f"a region's name must be a text, got {name!r}")
    return Region(name)
