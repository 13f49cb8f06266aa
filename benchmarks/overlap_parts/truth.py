"""How long calls take, by stamps of the GPU's clock around them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import torch
from common.running import Call

_HOLD_NS = 4_000_000
_REST_SECONDS = 0.02  # so that the clock is that of a burst


def elapsed(calls: Sequence[Call], rounds: int) -> list[list[float]]:
    """Seconds of each call in each round, from stamps before and after it on the current stream."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    found: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        time.sleep(_REST_SECONDS)
        stamps = []
        torch.ops.convtime.spin_ns(_HOLD_NS)
        order = list(range(len(calls)))
        random.Random(number).shuffle(order)  # noqa: S311
        for index in order:
            torch.ops.convtime.flush_l2()
            before = torch.ops.convtime.read_clocks()
            between = torch.ops.convtime.read_clocks()
            calls[index]()
            after = torch.ops.convtime.read_clocks()
            stamps.append((index, before, between, after))
        torch.cuda.synchronize()
        for index, before, between, after in stamps:
            empty = int(between[0]) - int(before[0])
            found[index].append(1e-9 * (int(after[0]) - int(between[0]) - empty))
    return found


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """The median of the rounds' ratios, with its interval by the bootstrap, at 95 %."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    chance = random.Random(0)  # noqa: S311
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(1000))
    return statistics.median(ratios), medians[25], medians[974]
