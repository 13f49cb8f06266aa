"""Why a convolution takes another time in PyTorch than by itself: a forum's thread, measured.

A real training loop (ResNet-18, float32 in channels_last) runs for 1, 10, 100 and 1000 iterations
from a rest on, and so do three of its convolutions by themselves, call after call on the same data:
mean, minimum and maximum of their kernels' times, and the clock. Beside them convtime times the
same convolutions by themselves, each after a step of the loop: in its regime. Further rows are the
clock of the machine at rest, all groups of hardware counters of the convolutions' kernels in the
loop and with caches in different states, and each piece of the advice that the thread gives,
without and with it.
"""

import functools

from common import running
from forum_thread_parts.report import advice_table, counters_table, picture, summarise, table

ITERATIONS = (1, 10, 100, 1000)

__all__ = ["advice_table", "counters_table", "picture", "summarise", "table"]


def make_cases(device: running.Device) -> dict[str, running.Measure]:
    from forum_thread_parts import advice, counted, points
    from forum_thread_parts.net import LAYERS

    cases: dict[str, running.Measure] = {"idle": functools.partial(points.idle_clock, device)}
    for iterations in ITERATIONS:
        cases[f"{iterations} iterations"] = functools.partial(points.measure, device, iterations)
    for name in LAYERS:
        cases[f"counters of {name}"] = functools.partial(counted.measure, device, name)
    for name in advice.ADVICE:
        cases[f"advice: {name}"] = functools.partial(advice.measure, device, name)
    return cases


if __name__ == "__main__":
    running.run_on_gpu("forum_thread", __doc__, summarise, make_cases)
