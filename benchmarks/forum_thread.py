"""Why a convolution takes another time in PyTorch than by itself: a forum's thread, measured.

A real training loop (ResNet-18, float32 in channels_last) runs for 1, 10, 100 and 1000 iterations
from a rest on, and so do three of its convolutions by themselves, call after call on the same data:
mean, minimum and maximum of their kernels' times, and the clock. Beside them convtime times the
same convolutions by themselves, each after a step of the loop: in its regime. Further rows are the
clock of the machine at rest, all groups of hardware counters of the convolutions' kernels in the
loop and with caches in different states, and each piece of the advice that the thread gives,
without and with it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from common import running
from forum_thread_parts import report, summary

if TYPE_CHECKING:
    import torch

ITERATIONS = (1, 10, 100, 1000)

summarise = summary.summarise
table = report.table
counters_table = report.counters_table
advice_table = report.advice_table
picture = report.picture


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    from forum_thread_parts import advice, counted, points
    from forum_thread_parts.net import LAYERS, Size

    size = Size()
    cases: dict[str, running.Measure] = {"idle": functools.partial(points.idle_clock, device)}
    for iterations in ITERATIONS:
        measure = functools.partial(points.measure, device, size, iterations)
        cases[f"{iterations} iterations"] = measure
    for name in LAYERS:
        cases[f"counters of {name}"] = functools.partial(counted.measure, device, size, name)
    for name in advice.ADVICE:
        cases[f"advice: {name}"] = functools.partial(advice.measure, device, size, name)
    return cases


def main() -> None:
    running.run_on_gpu("forum_thread", __doc__, summarise, make_cases)


if __name__ == "__main__":
    main()
