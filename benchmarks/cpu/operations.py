"""Operations on the CPU whose duration is drawn, each with one that takes 5 % longer.

A long call repeats a small piece of work 20 times, and the longer one 21 times. The pieces work on
the same tensors, so that all of them find the same cache. A short call is a single operation with
as many rows as the requested duration needs, and the longer one has more rows.
"""

import functools
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from common.operations import operation
from common.running import Call

SHORTEST_SECONDS, LONGEST_SECONDS = 5e-6, 50e-3
PLANTED = 1.05
PIECES = 20
_NEAR = 1.1  # to the requested duration
_SIZING_STEPS = 25
_MOST_ROWS = 1 << 22
_COARSEST = 0.1  # relative error of the additional time that rounding to whole rows may cause
_OVER_SHORTEST = 2  # so that a call's time grows with its rows

Make = Callable[[int], Call]  # of an operation on a number of rows


class Pair(NamedTuple):
    call: Call
    copy: Call
    longer: Call
    what: str


def repeat(piece: Call, count: int) -> object:
    result = None
    for _ in range(count):
        result = piece()
    return result


def draw_operation(family: str, chance: random.Random) -> tuple[str, Make]:
    pick = chance.choice
    match family:
        case "elementwise":
            kind = pick(("relu", "add", "exp"))
            return f"{kind} 64", _named(f"{kind} {{}}x64")
        case "matmul":
            kind = pick(("mm", "linear"))
            inner, outer = pick((16, 32, 64, 128)), pick((16, 32, 64, 128))
            name = "matmul" if kind == "mm" else kind
            return f"{kind} {inner}x{outer}", _named(f"{name} {{}}x{inner}x{outer}")
        case "norm":
            columns = pick((16, 32, 64))
            kind = "layer_norm" if chance.random() < 0.5 else "softmax"
            return f"{kind} {columns}", _named(f"{kind} {{}}x{columns}")
        case "conv":
            channels, size = pick((4, 8, 16)), pick((8, 14))
            image = f"{channels}x{size}x{size}"
            return f"conv2d {image}", _named(f"conv {{}}x{image}")
        case "loop":  # a row is one operation on a few elements
            elements = pick((1, 8, 64))
            negate = _named(f"neg {elements}")
            return f"loop over neg {elements}", lambda rows: functools.partial(
                repeat, negate(rows), rows
            )
    columns = pick((16, 64, 256))
    return f"sort {columns}", _named(f"sort {{}}x{columns}")


def _named(pattern: str) -> Make:
    def make(rows: int) -> Call:
        torch.manual_seed(0)  # so that copies of a call work on the same values
        return operation(pattern.format(rows), torch.device("cpu"))

    return make


def make_pair(family: str, chance: random.Random, seconds: float) -> Pair:
    """An operation of that family that takes about that long.

    ValueError where the drawn one takes longer on a single row, or does not grow evenly.
    """
    what, make = draw_operation(family, chance)
    shortest = quick_seconds(make(1))
    if seconds >= PIECES * shortest:
        rows = fit_rows(make, seconds / PIECES)
        counts = (PIECES, PIECES, PIECES + 1)
        call, copy, longer = (functools.partial(repeat, make(rows), count) for count in counts)
        return Pair(call, copy, longer, f"{what}, {rows} rows, {PIECES} times")
    if seconds < _OVER_SHORTEST * shortest:
        raise ValueError(f"{what} takes {1e6 * shortest:.1f} µs on a single row")
    rows = fit_rows(make, seconds)
    more = longer_rows(make, rows)
    return Pair(make(rows), make(rows), make(more), f"{what}, {rows} rows against {more}")


def fit_rows(make: Make, seconds: float) -> int:
    """A number of rows that takes about that long; few rows allow a coarse choice only."""
    rows = 1
    for _ in range(_SIZING_STEPS):
        found = quick_seconds(make(rows))
        wanted = max(round(rows * min(max(seconds / found, 1 / 16), 16)), 1)
        if wanted == rows or seconds / _NEAR <= found <= seconds * _NEAR:
            return rows
        rows = wanted
        if rows > _MOST_ROWS:
            break
    raise ValueError(f"no number of rows takes {1e6 * seconds:.1f} µs")


def longer_rows(make: Make, rows: int) -> int:
    once, twice = (
        median_interval(samples).median
        for samples in interleaved([make(rows), make(2 * rows)], 0.1, 15)
    )
    if twice <= once:
        raise ValueError(f"{2 * rows} rows take no longer than {rows}")
    more = (PLANTED - 1) * once * rows / (twice - once)
    if abs(round(more) - more) > _COARSEST * more:
        raise ValueError(f"5 % longer are {more:.1f} more rows, no whole number")
    return rows + round(more)


_SAMPLE_SECONDS = 10e-6  # a sample is of several calls where one is shorter
_BLOCKS = 15


class Interval(NamedTuple):
    median: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """The interval by the sign test; the whole range where there are too few values for 95 %."""
    ordered = sorted(values)
    below, outside = 0, 0.0
    while (outside := outside + 2 * math.comb(len(ordered), below) / 2 ** len(ordered)) <= 0.05:
        below += 1
    left_out = max(below - 1, 0)
    return Interval(statistics.median(ordered), ordered[left_out], ordered[-1 - left_out])


def time_calls(call: Call, count: int) -> float:
    """Seconds of one call of several back to back, less those of a loop that calls nothing."""
    begin = time.perf_counter_ns()
    nothing = [None for _ in itertools.repeat(None, count)]
    between = time.perf_counter_ns()
    results = [call() for _ in itertools.repeat(None, count)]
    end = time.perf_counter_ns()
    del nothing, results
    return 1e-9 * max(end - between - (between - begin), 1) / count


def quick_seconds(call: Call, samples: int = 7) -> float:
    call()
    count = _calls_per_sample(time_calls(call, 1))
    return statistics.median(time_calls(call, count) for _ in range(samples))


def interleaved(calls: Sequence[Call], seconds: float, least_rounds: int) -> list[list[float]]:
    """Samples of each call, in rounds of all calls in random order."""
    counts = [_calls_per_sample(quick_seconds(call, samples=3)) for call in calls]
    chance = random.Random(0)  # noqa: S311
    order = list(range(len(calls)))
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + 0.1 * seconds
    while time.perf_counter() < end:
        for call, count in zip(calls, counts, strict=True):
            time_calls(call, count)
    end = time.perf_counter() + seconds
    while len(found[0]) < least_rounds or time.perf_counter() < end:
        chance.shuffle(order)
        for index in order:
            found[index].append(time_calls(calls[index], counts[index]))
    return found


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
    below, above = interleaved([under, over], seconds, least_rounds)
    return over_blocks([a / b for a, b in zip(above, below, strict=True)])


def true_seconds(call: Call, seconds: float = 0.2, least_rounds: int = 11) -> Interval:
    (found,) = interleaved([call], seconds, least_rounds)
    return over_blocks(found)
