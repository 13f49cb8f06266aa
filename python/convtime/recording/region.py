"""Regions: named sections of a program, which recordings report and NVTX tools show."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from convtime.core.checks import check_type
from convtime.timing.candidate import deferred_kind, name_of

_Function = TypeVar("_Function", bound=Callable[..., Any])

# NVTX functions do nothing unless a tool is attached, and need no GPU.
_HAS_NVTX = torch.version.cuda is not None


@dataclasses.dataclass(eq=False, slots=True)
class OpenEntry:
    """A region that a thread entered during a recording.

    Attributes:
        name: name of the region.
        parent: the enclosing entry; of another thread if that thread passed its context on, as
            ``asyncio.to_thread`` does.
        log: log of the thread.
        index: its index in the recording.
        start: time of entry, in nanoseconds on the recording's clock.
        end: time of exit on the same clock; -1 while it is open.
        host_start: as ``start``, on the host's clock.
        host_end: as ``end``, on the host's clock.
    """

    name: str
    log: ThreadLog
    parent: OpenEntry | None = None
    index: int = -1
    start: int = -1
    end: int = -1
    host_start: int = -1
    host_end: int = -1

    def open_at(self, time: int) -> OpenEntry | None:
        """Return the innermost of this entry and its parents that was still open at that time."""
        entry: OpenEntry | None = self
        while entry is not None and 0 <= entry.end <= time:
            entry = entry.parent
        return entry


@dataclasses.dataclass(eq=False, slots=True)
class ThreadLog:
    """The regions of one thread, in order of time.

    Attributes:
        log: log of the recording.
        thread: number of the thread.
        times: when it entered or left a region, or switched to another asynchronous task.
        innermost: its innermost region from that time on, until it is left; None for none.
        missed_switch: whether it switched to another task without notice, as under event loops
            other than asyncio's; ``innermost`` is then only the last known region.
    """

    log: RegionLog
    thread: int
    times: list[int] = dataclasses.field(default_factory=list)
    innermost: list[OpenEntry | None] = dataclasses.field(default_factory=list)
    missed_switch: bool = False

    def note(self, entry: OpenEntry | None, time: int) -> None:
        """Record that the thread is in an entry from now on, or in none."""
        self.innermost.append(entry)
        self.times.append(time)

    def last(self, time: int) -> OpenEntry | None:
        """Return the last known entry of the thread, if it is still open."""
        entry = self.innermost[-1] if self.innermost else None
        return None if entry is None else entry.open_at(time)


class RegionLog:
    """The regions of every thread of the process.

    Attributes:
        entries: entries into regions, in order.
        threads: a log for each thread that entered a region, by the thread's number.
        names: names of the threads.
        began: time of creation, in nanoseconds on the recording's clock.
        host_began: as ``began``, on the host's clock.

    Args:
        clock: returns the time in nanoseconds, on the clock of the recorded work.
        thread_number: returns the calling thread's number, as the recorded work has it.
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
        """Record that the calling thread enters a region inside another."""
        log = self._log_of_thread()
        entry = OpenEntry(name, log, host_start=time.perf_counter_ns())
        entry.start = self._clock()
        entry.parent = self._open(around, entry.start)
        last = log.last(entry.start)
        log.missed_switch |= last is not None and last is not entry.parent
        with self._adding:  # time is read first, because the recording may end at any moment
            entry.index = len(self.entries)
            self.entries.append(entry)
        log.note(entry, entry.start)
        return entry

    def leave(self, entry: OpenEntry) -> None:
        """Record that the calling thread leaves a region."""
        end = self._clock()
        last = entry.log.last(end)
        entry.log.missed_switch |= last is not None and last is not entry
        entry.end = end
        entry.host_end = time.perf_counter_ns()
        entry.log.note(entry.parent, entry.end)

    def turn_to(self, entry: OpenEntry | None) -> OpenEntry | None:
        """Record that the calling thread switches to a task that is in an entry, or in none.

        Returns:
            The previous entry of the thread.
        """
        now = self._clock()
        entry = self._open(entry, now)
        if entry is None and self._thread_number() not in self.threads:
            return None  # a thread without regions works for threads that have some
        log = self._log_of_thread()
        last = log.last(now)
        if entry is not last:
            log.note(entry, now)
        return last

    def _open(self, entry: OpenEntry | None, time: int) -> OpenEntry | None:
        """Return the entry or its innermost open parent; None if it is of another recording."""
        return entry.open_at(time) if entry is not None and entry.log.log is self else None

    def _log_of_thread(self) -> ThreadLog:
        number = self._thread_number()
        with self._adding:
            if number not in self.threads:
                self.threads[number] = ThreadLog(self, number)
                self.names[number] = threading.current_thread().name
            return self.threads[number]


@dataclasses.dataclass(frozen=True)
class _Open:
    """An open region.

    Attributes:
        region: the region.
        entry: its entry in the recording; None if nothing records.
        nvtx: number of its NVTX range; None without NVTX.
        around: the enclosing open region.
    """

    region: Region
    entry: OpenEntry | None
    nvtx: int | None
    around: _Open | None


# Of the running asynchronous task, or of the thread if no task runs.
_innermost: contextvars.ContextVar[_Open | None] = contextvars.ContextVar(
    "convtime_region", default=None
)
_log: RegionLog | None = None  # of the active recording


@contextlib.contextmanager
def logging_to(log: RegionLog) -> Iterator[None]:
    """Record regions, and task switches of asyncio's event loops, in a log.

    A task may wait inside an open region. Work that other tasks issue during the wait does not
    belong to that region. Python does not report switches, but asyncio runs each step of a task,
    in the task's context, through ``Handle._run``.
    """
    global _log
    handles: Any = asyncio.Handle
    run = handles._run

    def noting(handle: Any) -> Any:
        if log is not _log:
            return run(handle)
        innermost = handle._context.get(_innermost)
        before = log.turn_to(None if innermost is None else innermost.entry)
        try:
            return run(handle)
        finally:
            if log is _log:
                log.turn_to(before)

    _log = log
    handles._run = noting
    try:
        yield
    finally:
        _log = None
        if handles._run is noting:
            handles._run = run


class Region(contextlib.ContextDecorator):
    """A named section of a program; see :func:`region`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> Region:
        # Not push and pop: their stack belongs to the thread, and its tasks would share it.
        nvtx = torch.cuda.nvtx.range_start(self._name) if _HAS_NVTX else None
        around, log = _innermost.get(), _log
        entry = None
        if log is not None:
            entry = log.enter(self._name, around.entry if around is not None else None)
        _innermost.set(_Open(self, entry, nvtx, around))
        return self

    def __exit__(self, *_exception: object) -> None:
        """Leave the region, after any inner regions that an exception left open."""
        left = None
        while (innermost := _innermost.get()) is not None and left is not self:
            left = innermost.region
            _innermost.set(innermost.around)
            entry = innermost.entry
            if entry is not None and entry.log.log is _log:  # else its recording has ended
                _log.leave(entry)
            if innermost.nvtx is not None:
                torch.cuda.nvtx.range_end(innermost.nvtx)

    def __call__(self, function: _Function) -> _Function:
        kind = deferred_kind(function)
        if kind is not None and kind != "coroutine":
            raise TypeError(
                f"a region cannot decorate {name_of(function)}, a generator, whose caller runs in "
                "between; use it as `with` inside the generator"
            )
        if kind is None:
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
    """Name a section of a program; :func:`convtime.record` reports what runs in it.

    Use it as ``with convtime.region("name"):``, or as the decorator of a function or a coroutine
    function, but not of a generator. Regions can be nested and entered any number of times, on any
    thread and in any asynchronous task. Each also starts and ends an NVTX range of the same name,
    which Nsight Systems and other tools show. Without a recording, it has no other effect.

    Raises:
        TypeError: if the name is not a string, or the decorated function is a generator.
    """
    check_type("a region's name", name, str, "a string")
    return Region(name)
