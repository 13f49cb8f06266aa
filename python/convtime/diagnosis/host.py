"""Measure the effects of the operating system and the interpreter on calls on a CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import mmap
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from convtime.core.load import _C
from convtime.device.cpu import remote_share
from convtime.diagnosis.evidence import Evidence, Host, Operators, Timing, Waits
from convtime.diagnosis.operation import BUDGET, Operation, seconds_of
from convtime.timing.measurement import HostReading

_LOOP_SECONDS, _FEWEST_CALLS = 0.35, 3
_REST_SECONDS = 0.1
_FAULTED_PAGES = 2048
_CLOCKED_SECONDS, _MOST_CLOCKED = 0.02, 1000
_SMALLEST_SECONDS, _SMALLEST_CALLS = 0.005, 500
_VISITS = 2  # of each condition


def look_at_host(operation: Operation, evidence: Evidence) -> Evidence:
    """Read the system's counters over a loop of calls, then watch the calling thread in a loop."""
    probe = _C.HostProbe()
    rest, _ = _read(probe, lambda: time.sleep(_REST_SECONDS))
    # The highest clock in a few milliseconds after a rest, while the clock rises.
    clocks_hz = [hz for hz in (_C.core_clock_hz() for _ in range(20)) if hz is not None]
    loop, count = _loop_of(operation, evidence, _LOOP_SECONDS, _FEWEST_CALLS)
    reading, kernel = _read(probe, loop)
    loaded_hz = _C.core_clock_hz()
    waits, unseen = _watch(loop, count)
    share, why_not = remote_share(operation.tensors)
    host = Host(
        **_per_call(reading, count),
        kernel=kernel / count,
        cores=probe.cores,
        threads=reading.threads,
        background=rest.cpu_seconds / rest.seconds,
        minor_faults=reading.minor_faults / count,
        major_faults=reading.major_faults / count,
        fault_seconds=_seconds_of_a_fault(),
        waits=waits,
        rested_hz=max(clocks_hz, default=None),
        loaded_hz=loaded_hz,
        remote_share=share,
        missing="; ".join(filter(None, (probe.missing, unseen, why_not))),
    )
    return dataclasses.replace(evidence, host=host)


def _per_call(reading: HostReading, count: int) -> dict[str, Any]:
    """Return the fields of Host that depend on other load: of a call, or as a number of cores."""
    others = reading.others_seconds
    return {
        "seconds": reading.seconds / count,
        "cpu": reading.cpu_seconds / count,
        "waiting": _each(reading.waiting_seconds, count),
        "longest_wait": _each(reading.longest_wait_seconds, count),
        "others": None if others is None else others / reading.seconds,
        "throttled": _each(reading.throttled_seconds, count),
        "stolen": _each(reading.stolen_seconds, count),
    }


def _each(value: float | None, count: int) -> float | None:
    return None if value is None else value / count


def _loop_of(
    operation: Operation,
    evidence: Evidence,
    seconds: float,
    fewest: int = 1,
    most: int | None = None,
) -> tuple[Callable[[], None], int]:
    """Return a loop of calls that takes about that long, and the number of calls."""
    count = max(fewest, int(seconds / max(evidence.calls.loop.median, 1e-7)))
    count = count if most is None else min(count, most)

    def loop() -> None:
        for _ in range(count):
            operation.prepare()
            operation.call()

    return loop, count


def look_at_host_again(operation: Operation, evidence: Evidence) -> Evidence:
    """Read once more, seconds later, since other load varies. Both readings have equal weight."""
    first = evidence.host
    if first is None:
        return evidence
    loop, count = _loop_of(operation, evidence, _LOOP_SECONDS, _FEWEST_CALLS)
    reading, _ = _read(_C.HostProbe(), loop)
    means: dict[str, Any] = {
        name: _mean(getattr(first, name), value)
        for name, value in _per_call(reading, count).items()
    }
    return dataclasses.replace(evidence, host=dataclasses.replace(first, **means))


def _mean(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else (one + other) / 2


def _watch(loop: Callable[[], object], count: int) -> tuple[Waits | None, str]:
    """Return the calling thread's states in a loop of ``count`` calls, or why they are unknown.

    PyTorch runs with one thread: other threads look for work for some milliseconds after a call,
    and would be indistinguishable from threads that hold a lock.
    """
    with _restoring_threads():
        torch.set_num_threads(1)
        watch = _C.ThreadWatch()
        try:
            seconds = seconds_of(loop)
        finally:
            states = watch.stop()
    return Waits(seconds=seconds / count, **states) if states["looks"] else None, watch.missing


def _read(probe: _C.HostProbe, action: Callable[[], object]) -> tuple[HostReading, float]:
    """Return the readings over an action, and this process's CPU seconds in the kernel."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    children = _cpu_seconds_of_children()
    probe.begin(_LOOP_SECONDS)
    action()
    reading = HostReading(**probe.end())
    if reading.others_seconds is not None:  # a process that the call starts is no other process
        others = reading.others_seconds - (_cpu_seconds_of_children() - children)
        reading = dataclasses.replace(reading, others_seconds=max(0.0, others))
    return reading, resource.getrusage(resource.RUSAGE_SELF).ru_stime - before


def _cpu_seconds_of_children() -> float:
    """Return the CPU time of all processes that this one started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds_of_a_fault() -> float:
    """Return the least time of several attempts to touch a page for the first time."""
    seconds = []
    for _ in range(3):
        with mmap.mmap(-1, _FAULTED_PAGES * mmap.PAGESIZE) as memory:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                with contextlib.suppress(OSError):  # kernels without huge pages
                    memory.madvise(mmap.MADV_NOHUGEPAGE)
            view = torch.frombuffer(memory, dtype=torch.uint8)[:: mmap.PAGESIZE]
            seconds.append(seconds_of(lambda view=view: view.fill_(1)))  # type: ignore[misc]
            del view
    return min(seconds) / _FAULTED_PAGES


def look_at_operators(operation: Operation, evidence: Evidence) -> Evidence:
    """Time PyTorch's operators, and subtract the overhead that timing adds to each."""
    loop, count = _loop_of(operation, evidence, _CLOCKED_SECONDS, most=_MOST_CLOCKED)
    small = torch.zeros(1)
    # A call takes milliseconds if other threads hold the interpreter's lock.
    once = min(seconds_of(lambda: torch.neg(small)) for _ in range(10))
    calls = max(10, min(_SMALLEST_CALLS, int(_SMALLEST_SECONDS / max(once, 1e-7))))

    def smallest() -> None:
        for _ in range(calls):
            torch.neg(small)

    added, reading = _clock(smallest, math.inf)
    limit = max(0.0, reading["seconds"] / calls - added)
    _, reading = _clock(loop, limit + added)
    inside = reading["seconds"] - added * (reading["count"] - reading["outermost"] / 2)
    operators = Operators(
        count=reading["count"] / count,
        outermost=reading["outermost"] / count,
        seconds=max(0.0, inside) / count,
        dispatching=max(0.0, reading["dispatching"] - added * reading["count"]) / count,
        loop=min(seconds_of(loop) for _ in range(2)) / count,
        smallest=limit,
    )
    return dataclasses.replace(evidence, operators=operators)


def _clock(loop: Callable[[], object], limit: float) -> tuple[float, dict[str, float]]:
    """Return the overhead of timing per operator call, and the readings."""
    loop()
    plain = min(seconds_of(loop) for _ in range(3))
    clocked = []
    for _ in range(3):
        clock = _C.OperatorClock(limit)
        try:
            seconds = seconds_of(loop)
        finally:
            reading = clock.stop()
        clocked.append((seconds, reading))
    seconds, reading = min(clocked, key=lambda each: each[0])
    return max(0.0, seconds - plain) / max(reading["count"], 1), reading


def look_at_option(
    option: str, values: tuple[str, ...], operation: Operation, evidence: Evidence
) -> Evidence:
    """Time with several values of an option of ``time_op``."""
    times = {
        value: functools.partial(operation.timing, operation.candidate, **{option: value})
        for value in values
    }
    return evidence.with_contrast(option, _alternating(times))


def _alternating(times: Mapping[str, Callable[[], Timing]]) -> dict[str, Timing]:
    """Time each condition several times, alternating, to separate conditions from drift."""
    visits: dict[str, list[Timing]] = {name: [] for name in times}
    for _ in range(_VISITS):
        for name, time_once in times.items():
            visits[name].append(time_once())
    return {name: Timing.joined(timings) for name, timings in visits.items()}


def look_at_threads(operation: Operation, evidence: Evidence) -> Evidence:
    """Time with one thread, half of PyTorch's, one per core, and one thread in a loop."""
    before, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    counts = {1, max(1, before // 2), min(cores, before)} - {before}

    def timed_with(count: int) -> Timing:
        torch.set_num_threads(count)
        return operation.timing()

    times = {"as-is": functools.partial(timed_with, before)}
    for count in sorted(counts):
        times[f"{count} thread{'s' * (count > 1)}"] = functools.partial(timed_with, count)
    with _restoring_threads():
        timings = _alternating(times)
        if before > 1:
            torch.set_num_threads(1)
            loop, count = _loop_of(operation, evidence, BUDGET / 5)
            loop()
            alone = Timing(statistics.median(seconds_of(loop) / count for _ in range(5)))
            evidence = evidence.with_contrast("one thread", {"in a loop": alone})
    return evidence.with_contrast("threads", timings)


def look_at_denormals(operation: Operation, evidence: Evidence) -> Evidence:
    """Time with and without flushing denormals; with one thread, since the mode is per thread."""
    tiny = torch.tensor([torch.finfo(torch.float32).tiny])
    if not (tiny / 2).item():
        raise ValueError("denormals are already flushed to 0")
    if not torch.set_flush_denormal(False):
        raise ValueError("this CPU cannot flush denormals to 0")

    def timed_with(flushed: bool) -> Timing:
        torch.set_flush_denormal(flushed)
        return operation.timing(budget=BUDGET / 2)

    times = {
        "as-is": functools.partial(timed_with, False),
        "flushed": functools.partial(timed_with, True),
    }
    with _restoring_threads():
        torch.set_num_threads(1)
        try:
            return evidence.with_contrast("denormals", _alternating(times))
        finally:
            torch.set_flush_denormal(False)


@contextlib.contextmanager
def _restoring_threads() -> Iterator[None]:
    """Restore PyTorch's number of threads afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
