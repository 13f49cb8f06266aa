"""How much longer an operation takes on more data, by no clock of convtime's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial

import results
import torch

from gate_parts.operations import LARGER, ON_CPU, SIZES, Call, call_of, names_on

PLANTED = 1.05
CLOSEST, LOOKS = 4, 6
ROUNDS = 100  # of a look on the CPU


def find_plants(device: torch.device) -> results.Row:
    """By operation, the amount of data that takes closest to 5 % longer, and how much longer."""
    return {"plants": {name: _find_plant(name, device) for name in names_on(device)}}


def _find_plant(name: str, device: torch.device) -> results.Row:
    """By a look at all sizes, and several more at the closest.

    A look at a kernel of 4 µs is off by 1 %. So the closest one by a first look is often so by
    chance, and its ratio is that of the other looks.
    """
    ratios = {size: _ratio(name, device, size) for size in LARGER[name]}
    again = {
        size: statistics.fmean(_ratio(name, device, size) for _ in range(LOOKS))
        for size in closest(ratios, CLOSEST)
    }
    (best,) = closest(again, 1)
    return {
        "size": best,
        "ratio": again[best],
        "sizes": list(ratios),
        "ratios": [*ratios.values()],
        "sizes_again": list(again),
        "ratios_again": [*again.values()],
    }


def closest(ratios: Mapping[int, float], count: int) -> list[int]:
    """The sizes whose ratios are closest to what is planted."""
    return sorted(ratios, key=lambda size: abs(ratios[size] - PLANTED))[:count]


def _ratio(name: str, device: torch.device, size: int) -> float:
    over, under = (call_of(name, device, each) for each in (size, SIZES[name]))
    if name in ON_CPU:
        return _ratio_on_cpu(over, under)
    return _ratio_on_gpu(over, under, device)


def _ratio_on_gpu(over: Call, under: Call, device: torch.device) -> float:
    from placement import profiled_at_random

    from convtime import Candidate

    longer, shorter = profiled_at_random(
        [Candidate(partial(call.func, **call.keywords), *call.args) for call in (over, under)],
        device,
    )
    torch.cuda.empty_cache()
    return longer / shorter


def _ratio_on_cpu(over: Call, under: Call) -> float:
    """The median over rounds, in each of which either is called first once."""
    ratios = []
    for _ in range(ROUNDS):
        seconds = []
        for call in (over, under, under, over):
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        ratios.append((seconds[0] + seconds[3]) / (seconds[1] + seconds[2]))
    return statistics.median(ratios)
