"""Time an operation as a program calls it: the first calls, and calls in a loop."""

from __future__ import annotations

import contextlib
import statistics
from pathlib import Path
from time import perf_counter

import torch

from convtime.core.load import _C
from convtime.diagnosis.evidence import Calls, Timing
from convtime.diagnosis.subject import Subject, seconds_of
from convtime.timing.candidate import DEFERRED_TYPES, refuse_deferred_result

_FIRST_CALLS = 3
_BLOCKS = 10
_BLOCK_SECONDS = 0.02
_MOST_CALLS = 2000  # per block
_ISSUED = 7


def look_at_calls(subject: Subject) -> Calls:
    """Call the operation as a program would. Its exceptions propagate."""
    if subject.on_gpu:
        torch.empty(1, device=subject.place.device).fill_(0)  # initialize CUDA
    first = tuple(_call_and_wait(subject) for _ in range(_FIRST_CALLS))
    count = max(1, min(_MOST_CALLS, int(_BLOCK_SECONDS / max(min(first), 1e-7))))
    blocks = _BLOCKS if min(first) * count < 10 * _BLOCK_SECONDS else 3
    waiting = [_call_and_wait(subject) for _ in range(min(count * blocks, 30))]
    # Some calls may take far longer, e.g. if other threads hold the interpreter's lock.
    count = max(1, min(count, int(_BLOCK_SECONDS / statistics.fmean(waiting))))
    issuing = [_issue(subject) for _ in range(min(count * blocks, _ISSUED))]
    before, awake, begin = _blocks(subject), _awake_seconds(), perf_counter()
    loop = [_loop(subject, count) for _ in range(blocks)]
    seconds, awake = perf_counter() - begin, _awake_seconds() - awake
    after, calls = _blocks(subject), count * blocks
    return Calls(
        first=first,
        loop=_timing(loop),
        waiting=_timing(waiting),
        issuing=statistics.median(issuing),
        mean=statistics.fmean(loop),
        fewest=min(loop),
        running=awake / seconds,
        allocations=(after[0] - before[0]) / calls,
        frees=(after[1] - before[1]) / calls,
    )


def _awake_seconds() -> float:
    """Return the total time that this process's threads ran or waited for a CPU."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            ran, waited, _ = map(int, (task / "schedstat").read_text().split())
            found += ran + waited
    return 1e-9 * found


def _call_and_wait(subject: Subject) -> float:
    subject.prepare()
    subject.wait()
    begin = perf_counter()
    result = subject.call()
    if type(result) in DEFERRED_TYPES:
        refuse_deferred_result(result, subject.candidate.name)
    del result  # part of the measured time, as in a loop
    subject.wait()
    return perf_counter() - begin


def _issue(subject: Subject) -> float:
    subject.prepare()
    subject.wait()
    return seconds_of(subject.call)


def _loop(subject: Subject, count: int) -> float:
    if subject.candidate.acts_before_calls:  # excluded from the call's time
        return statistics.fmean(_call_and_wait(subject) for _ in range(count))
    subject.wait()
    begin = perf_counter()
    for _ in range(count):
        subject.call()
    subject.wait()
    return (perf_counter() - begin) / count


def _blocks(subject: Subject) -> tuple[int, int]:
    """Return the number of blocks that PyTorch's allocator requested from and returned to CUDA."""
    if not subject.on_gpu:
        return 0, 0
    stats = torch.cuda.memory_stats(subject.place.device)
    allocated, freed = (stats.get(f"segment.all.{what}", 0) for what in ("allocated", "freed"))
    return int(allocated), int(freed)


def _timing(samples: list[float]) -> Timing:
    low, high, _, _ = _C.median_interval(samples, (), (), 0.0, 0.0)
    median = statistics.median(samples)
    spread = _C.quantile(samples, 0.75) - _C.quantile(samples, 0.25)
    known = low > 0 and high < float("inf")
    return Timing(
        median=median,
        low=low if known else None,
        high=high if known else None,
        spread=spread / median if median > 0 else 0.0,
        count=len(samples),
    )
