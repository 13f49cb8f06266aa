"""Regions of a program: named stretches that a recording tells apart, and NVTX shows to others."""

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

from convtime.timing.candidate import name_of
from convtime.timing.deferred import deferred_kind

_Function = TypeVar("_Function", bound=Callable[..., Any])

# NVTX's functions do nothing unless a tool listens, and need no GPU.
_HAS_NVTX = torch.version.cuda is not None


class OpenEntry:
    """A region that a thread has entered while something recorded.

    Attributes:
        name: the region's.
        parent: the entry that it lies in; of another thread where that has passed its context on,
            as ``asyncio.to_thread`` does.
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

    def open_at(self, time: int) -> OpenEntry | None:
        """The innermost one of the entry and those around it that had not been left by then."""
        entry: OpenEntry | None = self
        while entry is not None and 0 <= entry.end <= time:
            entry = entry.parent
        return entry


class ThreadLog:
    """Where one thread was, in the order of time.

    Attributes:
        log: the recording's.
        thread: the thread's number.
        times: when it entered or left a region, or turned to another asynchronous task.
        innermost: which region it was in from then on, unless that is left; None for none.
        missed_switch: whether it has turned to another task without notice, as under event loops
            that are not asyncio's own; ``innermost`` is then no more than the last known one.
    """

    __slots__ = ("innermost", "log", "missed_switch", "thread", "times")

    def __init__(self, log: RegionLog, thread: int) -> None:
        self.log = log
        self.thread = thread
        self.times: list[int] = []
        self.innermost: list[OpenEntry | None] = []
        self.missed_switch = False

    def note(self, entry: OpenEntry | None, time: int) -> None:
        """Notes that the thread is in an entry from now on, or in none."""
        self.innermost.append(entry)
        self.times.append(time)

    def last(self, time: int) -> OpenEntry | None:
        """The entry that it was last known to be in, if it is still open."""
        entry = self.innermost[-1] if self.innermost else None
        return None if entry is None else entry.open_at(time)


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
        log = self._log_of_thread()
        entry = OpenEntry(name, None, log)
        entry.host_start = time.perf_counter_ns()
        entry.start = self._clock()
        entry.parent = self._open(around, entry.start)
        last = log.last(entry.start)
        log.missed_switch |= last is not None and last is not entry.parent
        with self._adding:  # stamped before, since the recording may end at any time
            entry.place = len(self.entries)
            self.entries.append(entry)
        log.note(entry, entry.start)
        return entry

    def leave(self, entry: OpenEntry) -> None:
        """Notes that the calling thread leaves a region."""
        end = self._clock()
        last = entry.log.last(end)
        entry.log.missed_switch |= last is not None and last is not entry
        entry.end = end
        entry.host_end = time.perf_counter_ns()
        entry.log.note(entry.parent, entry.end)

    def turn_to(self, entry: OpenEntry | None) -> OpenEntry | None:
        """Notes that the calling thread turns to a task that is in an entry, or in none.

        Returns:
            The entry that the thread was in before.
        """
        now = self._clock()
        entry = self._open(entry, now)
        if entry is None and self._thread_number() not in self.threads:
            return None  # a thread without regions works for those that have some
        log = self._log_of_thread()
        last = log.last(now)
        if entry is not last:
            log.note(entry, now)
        return last

    def _open(self, entry: OpenEntry | None, time: int) -> OpenEntry | None:
        """An entry, or the one around it that is still open; None for those of other recordings."""
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
    """A region that is open.

    Attributes:
        region: the region.
        entry: of the recording; None where nothing records.
        nvtx: the number of its NVTX range; None without NVTX.
        around: the one that it lies in.
    """

    region: Region
    entry: OpenEntry | None
    nvtx: int | None
    around: _Open | None


# Of the running asynchronous task, or of the thread where none runs.
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


@contextlib.contextmanager
def noting_switches(log: RegionLog) -> Iterator[None]:
    """Has asyncio's event loops tell a log which task each of their threads turns to.

    A region that is left open while its task waits is not that of the work which other tasks issue
    meanwhile. Python gives no notice of a switch, but asyncio runs each piece of a task, within its
    context, by ``Handle._run``.
    """
    handles: Any = asyncio.Handle
    run = handles._run

    def noting(handle: Any) -> Any:
        if log is not _log:
            return run(handle)
        found = handle._context.get(_innermost)
        before = log.turn_to(None if found is None else found.entry)
        try:
            return run(handle)
        finally:
            if log is _log:
                log.turn_to(before)

    handles._run = noting
    try:
        yield
    finally:
        if handles._run is noting:
            handles._run = run


class Region(contextlib.ContextDecorator):
    """A named stretch of a program; see :func:`region`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> Region:
        # Not pushed and popped: a thread has one stack of those, which its tasks would share.
        nvtx = torch.cuda.nvtx.range_start(self._name) if _HAS_NVTX else None
        around, log = _innermost.get(), _log
        entry = None
        if log is not None:
            entry = log.enter(self._name, around.entry if around is not None else None)
        _innermost.set(_Open(self, entry, nvtx, around))
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
            if innermost.nvtx is not None:
                torch.cuda.nvtx.range_end(innermost.nvtx)

    def __call__(self, function: _Function) -> _Function:
        kind = deferred_kind(function)
        if kind is not None and kind != "coroutine":
            raise TypeError(
                f"a region cannot decorate {name_of(function)}, a generator, whose caller runs in "
                "between; use it as `with` inside"
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
    """Names a stretch of a program: what runs in it is told apart by :func:`convtime.record`.

    To be used as ``with convtime.region("name"):``, or to decorate a function, which may be a
    coroutine's, but not a generator's. Regions may lie in each other, be entered any number of
    times, on any thread and in any asynchronous task. An NVTX range of the same name is started and
    ended with it, so that Nsight Systems and others show it. Where nothing records, that is all it
    does.

    Raises:
        TypeError: for a name that is no text, and to decorate a generator function.
    """
    if not isinstance(name, str):
        raise TypeError(f"a region's name must be a text, got {name!r}")
    return Region(name)
