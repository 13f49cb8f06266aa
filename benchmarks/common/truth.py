"""What a GPU really did in a call: by torch.profiler's trace, and by the kernel's own stamps."""

import bisect
import collections
import itertools
import secrets
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

import convtime  # noqa: F401  # registers the ops
from common.operations import Operation
from common.running import Call
from common.summaries import midmean

RANGE = "convtime benchmark call"


class Trace(NamedTuple):
    """What the device did in each call; times in seconds."""

    kernels: list[int]
    busy: list[float]
    spans: list[float]
    held: bool


Times = tuple[int, int]  # start and end, in nanoseconds


def _read_trace(profiler: Any) -> Trace:
    """Attributes what ran on the device to the call in whose range the host launched it.

    Launches count whichever thread made them; flushes and the holding kernel were launched outside
    of the ranges, and so drop out. ValueError where a call has nothing on the device.
    """
    ranges: list[Times] = []
    launches: dict[int, int] = {}
    works: list[tuple[int, Times]] = []  # with their correlation
    for event in profiler.profiler.kineto_results.events():
        start, correlation = event.start_ns(), event.correlation_id()
        times = start, start + event.duration_ns()
        # The device's timeline repeats the range itself, under its own name.
        if event.device_type() == DeviceType.CUDA and event.name() != RANGE:
            works.append((correlation, times))
        elif event.device_type() != DeviceType.CUDA and event.name() == RANGE:
            ranges.append(times)
        elif event.name().startswith("cu") and correlation:
            launches[correlation] = start
    ranges.sort()
    starts = [start for start, _ in ranges]
    calls: list[list[Times]] = [[] for _ in ranges]
    last_launch = 0
    for correlation, times in works:
        launched = launches.get(correlation, -1)
        index = bisect.bisect_right(starts, launched) - 1
        if index >= 0 and launched <= ranges[index][1]:
            calls[index].append(times)
            last_launch = max(last_launch, launched)
    if not calls or not all(calls):
        raise ValueError(f"{sum(not call for call in calls)} of {len(calls)} calls have no kernel")
    return Trace(
        kernels=[len(call) for call in calls],
        busy=[1e-9 * _busy(call) for call in calls],
        spans=[1e-9 * (max(end for _, end in call) - min(call)[0]) for call in calls],
        held=min(calls[0])[0] >= last_launch,
    )


def _busy(call: Iterable[Times]) -> int:
    busy = until = 0
    for start, end in sorted(call):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


def profile_calls(call: Call, count: int, *, cold: bool) -> Trace:
    """Calls queued back to back after a kernel that holds them until all are issued.

    Were they not held, a call's span would have the host's gaps in it; then the hold is lengthened.
    """
    hold_ns = 5_000_000 + 200_000 * count
    for _ in range(3):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            torch.ops.convtime.spin_ns(hold_ns)
            for _ in range(count):
                if cold:
                    torch.ops.convtime.flush_l2()
                with record_function(RANGE):
                    call()
            torch.cuda.synchronize()
        trace = _read_trace(profiler)
        if trace.held:
            break
        hold_ns *= 3
    return trace


def median_of_stamps(call: Callable[[], torch.Tensor], count: int, *, cold: bool) -> float:
    """Seconds from a call's first block's start to its last block's end, by the blocks' own stamps.

    The call gives the stamps, [start, end] a block, in nanoseconds. `count` of them are queued.
    """
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    torch.ops.convtime.spin_ns(5_000_000)
    on_device = []
    for _ in range(count):
        if cold:
            torch.ops.convtime.flush_l2()
        on_device.append(call())
    torch.cuda.synchronize()
    durations = [
        int(stamps[:, 1].max() - stamps[:, 0].min())
        for stamps in (found.cpu() for found in on_device)
    ]
    return 1e-9 * statistics.median(durations)


_PLACES = 256


def profiled_at_random(calls: Sequence[Operation], device: torch.device) -> list[float]:
    """The midmean of each call, by turns, after a flush, each on tensors at other places.

    Of a median, the profiler's clock would say no more than a tick: 0.8 % of a kernel of 4 µs.
    """

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        start = random_offset()
        memory = torch.empty(start + value.nbytes, dtype=torch.uint8, device=device)
        whole = memory[start:].view(value.dtype)
        return whole.as_strided(value.shape, value.stride()).copy_(value)

    turns = itertools.cycle(
        [
            (number, Operation(each.func, *map(moved, each.args), **each.keywords))
            for _ in range(_PLACES)
            for number, each in enumerate(calls)
        ]
    )
    # Results, and what lies between them: what is kept is not used again for the next one.
    kept: collections.deque[object] = collections.deque(maxlen=2 * _PLACES)
    called: list[int] = []

    def call() -> None:
        number, work = next(turns)
        called.append(number)
        kept.append(torch.empty((1 << 20) + random_offset(), dtype=torch.uint8, device=device))
        kept.append(work())

    for _ in range(_PLACES // 2 * len(calls)):  # the first calls on other places are slower
        call()
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in calls:  # what is held at a time fits into the queue
        found = profile_calls(call, _PLACES, cold=True).busy
        for number, time_of_call in zip(called[-_PLACES:], found, strict=True):
            seconds[number].append(time_of_call)
    return list(map(midmean, seconds))


def random_offset() -> int:
    """In bytes, within the 2 MiB that addresses are laid out anew in."""
    return 512 * secrets.randbelow(4096)
