"""The rows, by what they are of."""

import functools

import torch
from common.running import Measure, run

from forum_thread import advice, counted, points
from forum_thread.net import LAYERS

ITERATIONS = (1, 10, 100, 1000)


def make_cases(device: torch.device) -> dict[str, Measure]:
    cases: dict[str, Measure] = {"idle": functools.partial(points.idle_clock, device)}
    for iterations in ITERATIONS:
        cases[f"{iterations} iterations"] = functools.partial(points.measure, device, iterations)
    for name in LAYERS:
        cases[f"counters of {name}"] = functools.partial(counted.measure, device, name)
    for name in advice.ADVICE:
        cases[f"advice: {name}"] = functools.partial(advice.measure, device, name)
    return cases


if __name__ == "__main__":
    run("forum_thread", make_cases)
