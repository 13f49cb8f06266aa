"""How long calls on the CPU take, by Python's clock."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from common.running import Call

_SAMPLE_SECONDS = 10e-6  # a sample is of several calls where one is shorter
_BLOCKS = 15


class Interval(NamedTuple):
    """A median, and its interval at 95 %."""

    median: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """The interval by the sign test; the whole range where there are too few values for 95 %."""
    ordered = sorted(values)
    count = len(ordered)
    below, outside = 0, 0.0
    while (outside := outside + 2 * math.comb(count, below) / 2**count) <= 0.05:
        below += 1
    left_out = max(below - 1, 0)
    return Interval(statistics.median(ordered), ordered[left_out], ordered[-1 - left_out])


def time_calls(call: Call, count: int) -> float:
    """Seconds of one call of several back to back, less those of a loop that calls nothing.

    Results are freed afterwards, outside of the time.
    """
    begin = time.perf_counter_ns()
    nothing = [None for _ in itertools.repeat(None, count)]
    between = time.perf_counter_ns()
    results = [call() for _ in itertools.repeat(None, count)]
    end = time.perf_counter_ns()
    del nothing, results
    return 1e-9 * max(end - between - (between - begin), 1) / count


def quick_seconds(call: Call, samples: int = 7) -> float:
    """The median of a few samples, after a first call."""
    call()
    count = _calls_per_sample(time_calls(call, 1))
    return statistics.median(time_calls(call, count) for _ in range(samples))


def interleaved(calls: Sequence[Call], seconds: float, least_rounds: int) -> list[list[float]]:
    """Samples of each call, in rounds of all calls in random order.

    Args:
        calls: What is called. Before the rounds, they warm up for a tenth of the time.
        seconds: Time for all rounds, unless `least_rounds` take longer.
        least_rounds: Minimum number of rounds.
    """
    counts = [_calls_per_sample(quick_seconds(call, samples=3)) for call in calls]
    chance = random.Random(0)  # noqa: S311
    order = list(range(len(calls)))
    found: list[list[float]] = [[] for _ in calls]
    _rounds_until(time.perf_counter() + 0.1 * seconds, calls, counts)
    end = time.perf_counter() + seconds
    while len(found[0]) < least_rounds or time.perf_counter() < end:
        chance.shuffle(order)
        for index in order:
            found[index].append(time_calls(calls[index], counts[index]))
    return found


def _rounds_until(end: float, calls: Sequence[Call], counts: Sequence[int]) -> None:
    while time.perf_counter() < end:
        for call, count in zip(calls, counts, strict=True):
            time_calls(call, count)


def _calls_per_sample(seconds: float) -> int:
    return max(1, math.ceil(_SAMPLE_SECONDS / seconds))


def over_blocks(values: Sequence[float]) -> Interval:
    """The interval over the medians of consecutive values.

    Thousands of values would give an interval that is narrower than the drift of the machine.
    """
    size = math.ceil(len(values) / _BLOCKS)
    return median_interval(
        [statistics.median(values[index : index + size]) for index in range(0, len(values), size)]
    )


def true_ratio(over: Call, under: Call, seconds: float = 0.3, least_rounds: int = 15) -> Interval:
    """The median of the rounds' ratios, with its interval."""
    below, above = interleaved([under, over], seconds, least_rounds)
    return over_blocks([a / b for a, b in zip(above, below, strict=True)])


def true_seconds(call: Call, seconds: float = 0.2, least_rounds: int = 11) -> Interval:
    """The median of a call's durations, with its interval."""
    (found,) = interleaved([call], seconds, least_rounds)
    return over_blocks(found)
