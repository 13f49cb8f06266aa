"""How long calls take, by stamps of the GPU's clock around them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import torch
from common.running import Call

# Which of several streams begins first may depend on how long they are held; rounds take turns.
_HOLDS_NS = (4_000_000, 2_000_000)
_REST_SECONDS = 0.02  # so that the clock is that of a burst
_MOST_TRIES = 2  # for each round


def elapsed(calls: Sequence[Call], rounds: int) -> list[list[float]]:
    """Seconds of each call in each round, from stamps before and after it on the current stream.

    Raises:
        RuntimeError: The host took longer to issue most rounds than they are held.
    """
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
        f"{len(found[0])} of {_MOST_TRIES * rounds} rounds were issued within the "
        f"{' or '.join(f'{hold / 1e6:g}' for hold in _HOLDS_NS)} ms that they are held, but "
        f"{rounds} must be"
    )


def _round(calls: Sequence[Call], order: Sequence[int], hold: int) -> tuple[list[float], float]:
    """Seconds of each call, in that order, and the seconds that the host needed to issue them."""
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
    seconds = []
    for before, between, after in stamps:
        empty = int(between[0]) - int(before[0])
        seconds.append(1e-9 * (int(after[0]) - int(between[0]) - empty))
    return seconds, issued_after


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """The median of the rounds' ratios, with its interval by the bootstrap, at 95 %."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    chance = random.Random(0)  # noqa: S311
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(1000))
    return statistics.median(ratios), medians[25], medians[974]
