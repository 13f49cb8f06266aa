"""Record the work in a program's regions, and find the region that each piece was issued in."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch

from convtime.core.checks import check_one_of, require
from convtime.core.errors import one_line
from convtime.core.load import _C
from convtime.device.provenance import provenance
from convtime.device.resolve import resolve_device
from convtime.recording.recording import Entry, Launch, Recording, Work
from convtime.recording.region import (
    OpenEntry,
    RegionLog,
    ThreadLog,
    logging_to,
)
from convtime.timing.sampling.calls import make_way_for_profilers
from convtime.timing.sampling.object_graph import without_modes

#: A thread, and the time at which it issued work.
Issue = tuple[int, int]


class Ownership:
    """Finds the region that work was issued in.

    This is the innermost region of the issuing thread, or of the asynchronous task that it ran. A
    thread without regions works for threads or tasks that were in a region at that time. Autograd's
    threads run backward passes for the thread or task that waits for them. Other threads work for
    others unless they also issue work while no thread is in a region: then they work independently.

    Attributes:
        ambiguous: number of issues that may belong to several regions.

    Args:
        logs: logs of the threads that have regions.
        entries: entries into regions.
        autograd: numbers of autograd's threads.
        issues: all issues.
    """

    def __init__(
        self,
        logs: Mapping[int, ThreadLog],
        entries: Sequence[OpenEntry],
        autograd: Collection[int],
        issues: Iterable[Issue],
    ) -> None:
        self.ambiguous = 0
        self._logs = logs
        self._autograd = autograd
        self._open = _OpenEntries(
            entry for entry in entries if entry.log.thread not in self._autograd
        )
        self._unsure = {
            thread: _OpenEntries(entry for entry in entries if entry.log is log)
            for thread, log in logs.items()
            if log.missed_switch
        }
        self._own_account = {
            thread
            for thread, time in issues
            if thread not in autograd and (thread in logs or not self._open.innermost(time))
        }

    def owner(self, thread: int, time: int) -> int | None:
        """Return the index of the entry that work belongs to, or None."""
        entries = self._of_thread(thread, time)
        if not entries and thread not in self._own_account:
            entries = self._of_others(thread, time)
        if len(entries) > 1:
            self.ambiguous += 1
        return entries[0].index if len(entries) == 1 else None

    def around(self, entry: OpenEntry) -> int | None:
        """Return the index of the entry that encloses another, or None."""
        entries: Sequence[OpenEntry] = () if entry.parent is None else (entry.parent,)
        if not entries and entry.log.thread in self._autograd:
            entries = self._of_others(entry.log.thread, entry.start)
        return entries[0].index if len(entries) == 1 else None

    def _of_thread(self, thread: int, time: int) -> Sequence[OpenEntry]:
        """Return the entry that a thread was in, or all candidates if it is not certain."""
        if thread in self._unsure:
            return self._unsure[thread].innermost(time)
        if thread not in self._logs:
            return ()
        log = self._logs[thread]
        changes = bisect.bisect_right(log.times, time)
        last = log.innermost[changes - 1] if changes else None
        entry = None if last is None else last.open_at(time)
        return () if entry is None else (entry,)

    def _of_others(self, thread: int, time: int) -> Sequence[OpenEntry]:
        """Return the entries that a thread without regions may have worked for."""
        if thread in self._autograd:
            # A thread that waits for it has not switched to another task.
            others = (each for each in self._logs if each not in self._autograd)
            if entries := [entry for each in others for entry in self._of_thread(each, time)]:
                return entries
        return self._open.innermost(time)


class _OpenEntries:
    """Entries that were open at a given time, in threads and in waiting tasks.

    Args:
        entries: all entries, in order of entry.
    """

    def __init__(self, entries: Iterable[OpenEntry]) -> None:
        # A profiler that starts during the recording can set the recording's clock back. The times
        # of an entry that seems to end before it begins are then meaningless.
        entries = [entry for entry in entries if not 0 <= entry.end < entry.start]
        changes = [(entry.start, entry, 1) for entry in entries]
        changes += [(entry.end, entry, -1) for entry in entries if entry.end >= 0]
        changes.sort(key=lambda change: change[0])
        self._times = [time for time, _, _ in changes]
        self._innermost: list[tuple[OpenEntry, ...]] = []
        inside: dict[OpenEntry, int] = {}  # number of open entries directly inside each open entry
        for _, entry, change in changes:
            if change > 0:
                inside[entry] = 0
            else:
                del inside[entry]
            if entry.parent in inside:
                inside[entry.parent] += change
            self._innermost.append(tuple(each for each, count in inside.items() if not count))

    def innermost(self, time: int) -> tuple[OpenEntry, ...]:
        """Return the open entries that contain no open entry."""
        changes = bisect.bisect_right(self._times, time)
        return self._innermost[changes - 1] if changes else ()


RecordingMethod = Literal["auto", "kernel", "cpu"]

_active = threading.Lock()  # held by the one recording


@contextlib.contextmanager
def record(method: RecordingMethod = "auto") -> Iterator[Recording]:
    """Record the work that runs during a block of code, by region (:func:`convtime.region`).

    The block runs unmodified: nothing is delayed, repeated or flushed. If there is a GPU, the
    recording synchronizes with it before and after the block. Only one recording can be active at
    a time. While CUPTI records for it, a ``time_op`` in the same process uses another method and
    says so. A profiler that starts during the recording takes over CUPTI, and the recording keeps
    only the host times.

    Args:
        method: ``kernel`` records the kernels, copies and memsets of all GPUs and threads through
            CUPTI, in addition to host times; ``cpu`` records host times only; ``auto`` is kernel if
            that is available.

    Yields:
        The recording, which is filled when the block ends, also through an exception.

    Raises:
        ValueError: for an unknown method, or for ``kernel`` without a GPU.
        RuntimeError: if another recording is active, if the current stream is being captured, or
            for ``kernel`` if CUPTI is unavailable.
    """
    check_one_of("method", method, get_args(RecordingMethod))
    if not _active.acquire(blocking=False):
        raise RuntimeError(
            "only one recording can be active at a time, and one already is; use convtime.region "
            "to name sections of its work"
        )
    with contextlib.ExitStack() as ending:
        ending.callback(_active.release)
        trace, why_not = _begin_trace(method)
        if trace is None:
            log = RegionLog(time.perf_counter_ns, threading.get_native_id)
        else:
            ending.callback(trace.close)
            log = RegionLog(trace.now, trace.thread)
        recording = Recording(method_requested=method, method_reason=why_not)
        try:
            with logging_to(log):
                yield recording
        finally:
            recording.seconds = (time.perf_counter_ns() - log.host_began) * 1e-9
            _fill(recording, log, trace)


def _begin_trace(method: RecordingMethod) -> tuple[_C.Trace | None, str]:
    """Return the trace of the GPUs' work, or None and the reason."""
    if method == "cpu":
        return None, ""
    if not _C.cuda_available():
        require(
            method == "auto",
            "method 'kernel' records the work of a GPU, and there is none; use 'cpu'",
        )
        return None, "there is no GPU"
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a recording synchronizes with the GPU, which must not happen while its current stream "
            "is captured; record around the capture, or record the replays"
        )
    make_way_for_profilers()
    try:
        return _C.Trace(), ""
    except RuntimeError as error:
        if method == "kernel":
            raise RuntimeError(f"method 'kernel' cannot be used: {one_line(error)}") from error
        return None, f"kernel times are unavailable: {one_line(error)}"


def _fill(recording: Recording, log: RegionLog, trace: _C.Trace | None) -> None:
    launches: Sequence[Any] = ()
    issued: Sequence[Any] = ()
    autograd: set[int] = set()
    if trace is not None:
        try:
            launches, issued, recording.fault = trace.take(_other_devices())
            autograd = _autograd_threads(trace)
            recording.method = "kernel"
        except RuntimeError as error:  # a profiler took CUPTI
            recording.method_reason = f"kernel times were lost: {one_line(error)}"
    entries = list(log.entries)
    owners = Ownership(
        dict(log.threads), entries, autograd, ((thread, at) for _, _, _, at, thread, _ in issued)
    )
    recording.launches = tuple(Launch(**launch) for launch in launches)
    recording.work = tuple(
        Work(
            launch=launch,
            start=(start - log.began) * 1e-9,
            end=(end - log.began) * 1e-9,
            issued=(at - log.began) * 1e-9,
            thread=thread,
            stream=stream,
            entry=owners.owner(thread, at),
        )
        for launch, start, end, at, thread, stream in issued
    )
    recording.ambiguous = owners.ambiguous
    recording.entries = tuple(_entry(entry, owners.around(entry), recording) for entry in entries)
    # Python does not know the names of threads that it did not start.
    names = log.names | dict.fromkeys(autograd, "autograd")
    seen = dict.fromkeys([*log.names, *(work.thread for work in recording.work)])
    recording.threads = {thread: names.get(thread, f"thread {thread}") for thread in seen}
    recording.provenance = provenance(resolve_device(None if trace is not None else "cpu"))


def _entry(entry: OpenEntry, parent: int | None, recording: Recording) -> Entry:
    log = entry.log.log
    # The clock of the work may have changed if its trace was lost.
    start, end, began = (
        (entry.start, entry.end, log.began)
        if recording.method == "kernel"
        else (entry.host_start, entry.host_end, log.host_began)
    )
    seconds = (start - began) * 1e-9
    left = (end - began) * 1e-9 if entry.host_end >= 0 else max(seconds, recording.seconds)
    return Entry(entry.name, entry.log.thread, parent, seconds, left)


def _other_devices() -> list[int]:
    """Return the GPUs other than the current one that this process uses."""
    current = torch.cuda.current_device()
    return [
        device
        for device in range(torch.cuda.device_count())
        if device != current and torch._C._cuda_hasPrimaryContext(device)
    ]


class _WhoRuns(torch.autograd.Function):
    """Report which thread runs its backward pass; computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ask: Any) -> torch.Tensor:
        ctx.ask = ask
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.ask()
        return gradients[0], None


def _autograd_threads(trace: _C.Trace) -> set[int]:
    """Return the threads that run backward passes on this process's GPUs, as the trace has them."""
    threads: set[int] = set()
    devices = [torch.cuda.current_device(), *_other_devices()]
    with without_modes(), torch.enable_grad():
        for device in devices:
            x = torch.empty(1, device=torch.device("cuda", device), requires_grad=True)
            result = _WhoRuns.apply(x, lambda: threads.add(trace.thread()))
            torch.autograd.grad(result, x, torch.empty_like(x))
    return threads - {trace.thread()}  # autograd uses the calling thread if configured so
