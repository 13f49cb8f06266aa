"""How long calls take, by stamps of the GPU's clock, and pairs drawn until one is as asked for."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import results
import torch
from common.running import Call

# Which of several streams begins first may depend on how long they are held; rounds take turns.
_HOLDS_NS = (4_000_000, 2_000_000)
_REST_SECONDS = 0.02  # so that the clock is that of a burst
_MOST_TRIES = 2  # for each round


def elapsed(calls: Sequence[Call], rounds: int) -> list[list[float]]:
    """Seconds of each call in each round, from stamps before and after it on the current stream."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    found: list[list[float]] = [[] for _ in calls]
    for number in range(_MOST_TRIES * rounds):
        time.sleep(_REST_SECONDS)
        order = list(range(len(calls)))
        random.Random(number).shuffle(order)  # noqa: S311
        hold = _HOLDS_NS[len(found[0]) % len(_HOLDS_NS)]
        seconds, issued_after = _round(calls, order, hold)
        if issued_after > 1e-9 * hold:  # the GPU perhaps waited for the host
            continue
        for index, second in zip(order, seconds, strict=True):
            found[index].append(second)
        if len(found[0]) == rounds:
            return found
    raise RuntimeError(
        f"{len(found[0])} of {_MOST_TRIES * rounds} rounds were issued while they were held, but "
        f"{rounds} must be"
    )


def _round(calls: Sequence[Call], order: Sequence[int], hold: int) -> tuple[list[float], float]:
    begin = time.perf_counter()
    torch.ops.convtime.spin_ns(hold)
    stamps = []
    for index in order:
        torch.ops.convtime.flush_l2()
        before = torch.ops.convtime.read_clocks()
        between = torch.ops.convtime.read_clocks()
        calls[index]()
        stamps.append((before, between, torch.ops.convtime.read_clocks()))
    issued_after = time.perf_counter() - begin
    torch.cuda.synchronize()
    times = [[int(stamp[0]) for stamp in each] for each in stamps]
    seconds = [1e-9 * (after - 2 * between + before) for before, between, after in times]
    return seconds, issued_after


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """The median over the rounds, and its interval by the bootstrap."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    chance = random.Random(0)  # noqa: S311
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(1000))
    return statistics.median(ratios), medians[25], medians[974]


_CLOSE = (0.9, 1.1)
_SHORTEST_SECONDS = 400e-6
_LOOK_ROUNDS, _ROUNDS = 5, 31
_MOST_DRAWS = 25
#: Of an interval. A wider one is of a pair whose parts overlap in some rounds and not in others.
_WIDEST = 0.01
#: Of the margin's edges: a ratio that is closer to one says nothing about verdicts.
_EDGE, _APART = 0.01, 0.004


class Pair(NamedTuple):
    in_line: Call
    overlapping: Call
    what: str


def refusal(ratio: float, seconds: float, *, close: bool) -> str:
    if seconds < _SHORTEST_SECONDS:
        return "too short"
    if abs(abs(ratio - 1) - _EDGE) < _APART:
        return "at the margin's edge"
    if (_CLOSE[0] <= ratio <= _CLOSE[1]) != close:
        return "too far from 1" if close else "too close to 1"
    return ""


def draw_pair(
    make: Callable[[random.Random, torch.device], Pair],
    seed: str,
    *,
    close: bool,
    device: torch.device,
) -> tuple[Pair, results.Row]:
    chance = random.Random(seed)  # noqa: S311
    refused: list[str] = []
    while len(refused) < _MOST_DRAWS:
        pair = make(chance, device)
        for rounds in (_LOOK_ROUNDS, _ROUNDS):
            times = elapsed([pair.in_line, pair.overlapping], rounds)
            ratio, low, high = ratio_interval(times[1], times[0])
            medians = [*map(statistics.median, times)]
            why = refusal(ratio, min(medians), close=close)
            if why:
                break
        if high - low > _WIDEST and rounds == _ROUNDS:
            why = f"its interval is {low:.4f} to {high:.4f}"
        if not why:
            return pair, {
                "what": pair.what,
                "draws": len(refused) + 1,
                "refused": refused,
                "true_ratio": ratio,
                "true_interval": [low, high],
                "true_seconds": medians,
            }
        refused.append(f"{pair.what}: {ratio:.4f}, {why}")
        del pair
    raise ValueError(f"none of {_MOST_DRAWS} pairs was as asked for, the last {refused[-1]}")
