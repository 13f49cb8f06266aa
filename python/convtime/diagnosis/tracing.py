"""Trace a few calls with PyTorch's profiler: the host's CUDA calls and the GPU's work."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType

from convtime.diagnosis.evidence import Trace
from convtime.diagnosis.operation import Operation

RANGE = "convtime diagnosed call"

# Names of the host's calls.
_CALLS = {
    "wait": r"cu(da)?(Stream|Device|Event|Ctx)Synchronize",
    "allocate": r"cuda(Malloc|Free|HostAlloc)(?!\w*Async)|"
    r"cuMem(Alloc|Free|Create|Map|Unmap|Release)(?!\w*Async)",
    "launch": r"cu(da)?(LaunchKernel|GraphLaunch|LaunchCooperativeKernel|Memset)\w*",
    "copy": r"cu(da)?Memcpy\w*",
}
_WITH_HOST = re.compile(r"Memcpy (HtoD|DtoH)")


class Event(NamedTuple):
    """An event of the profiler; times in nanoseconds."""

    name: str
    start: int
    end: int
    on_device: bool
    correlation: int = 0


def trace(operation: Operation, calls: int) -> Trace:
    """Trace consecutive calls without waiting between them.

    Raises:
        RuntimeError: a profiler is already running.
    """
    if torch.autograd.profiler._is_profiler_enabled:
        raise RuntimeError("a profiler is already running")
    operation.wait()
    # torch.profiler.profile wraps this one, and imports torch._inductor first, for seconds.
    with torch.autograd.profiler.profile(use_kineto=True, use_device="cuda") as profiler:
        for _ in range(calls):
            operation.prepare()
            with torch.autograd.profiler.record_function(RANGE):
                operation.call()
        operation.wait()
    return read_trace(_events(profiler))


def _events(profiler: Any) -> list[Event]:
    return [
        Event(
            name=event.name(),
            start=event.start_ns(),
            end=event.start_ns() + event.duration_ns(),
            on_device=event.device_type() == DeviceType.CUDA,
            correlation=event.correlation_id(),
        )
        for event in profiler.kineto_results.events()
    ]


def read_trace(events: Iterable[Event]) -> Trace:
    """Add up the events of the calls: those inside their ranges, and the work launched there.

    Raises:
        ValueError: the events contain no call.
    """
    events = list(events)
    ranges = sorted(
        (each.start, each.end) for each in events if each.name == RANGE and not each.on_device
    )
    if not ranges:
        raise ValueError("the profiler recorded no call")
    requests = [
        each
        for each in events
        if not each.on_device and each.name.startswith("cu") and _is_within(each, ranges)
    ]
    correlations = {each.correlation for each in requests if each.correlation}
    done = [
        each
        for each in events
        if each.on_device and each.name != RANGE and each.correlation in correlations
    ]
    kernels = [each for each in done if not each.name.startswith(("Memcpy", "Memset"))]
    copies = [each for each in done if _WITH_HOST.match(each.name)]
    calls = {
        kind: [each for each in requests if re.match(names, each.name)]
        for kind, names in _CALLS.items()
    }
    count = len(ranges)

    def seconds(some: Sequence[Event]) -> float:
        return 1e-9 * sum(each.end - each.start for each in some) / count

    busy, running, moving = (_union(some) / count for some in (done, kernels, copies))
    host = 1e-9 * sum(end - start for start, end in ranges) / count
    waiting, allocating, copying = (seconds(calls[k]) for k in ("wait", "allocate", "copy"))
    return Trace(
        calls=count,
        busy=busy,
        kernels=running,
        copies=moving,
        hidden_copies=max(0.0, running + moving - _union([*kernels, *copies]) / count),
        pageable=seconds([each for each in copies if "Pageable" in each.name]),
        pinned=seconds([each for each in copies if "Pinned" in each.name]),
        launches=(len(calls["launch"]) + len(calls["copy"])) / count,
        waits=len(calls["wait"]) / count,
        waiting=waiting,
        allocations=len(calls["allocate"]) / count,
        allocating=allocating,
        copying=copying,
        issuing=max(0.0, host - (waiting + allocating + copying)),
    )


def _is_within(event: Event, ranges: Sequence[tuple[int, int]]) -> bool:
    place = bisect.bisect_right(ranges, (event.start, float("inf"))) - 1
    return place >= 0 and event.start <= ranges[place][1]


def _union(events: Sequence[Event]) -> float:
    """Return the seconds during which at least one event was running."""
    total, until = 0, 0
    for each in sorted(events, key=lambda each: each.start):
        total += max(0, each.end - max(each.start, until))
        until = max(until, each.end)
    return 1e-9 * total
