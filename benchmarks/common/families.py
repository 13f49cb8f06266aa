"""Benchmarks whose cases are drawn from families by a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import results

from common import running, summaries

if TYPE_CHECKING:
    from convtime.timing.comparison import Comparison

SEED = 0
_WARM_UP_SECONDS = 0.05
_LEAST_SAMPLES, _MOST_SAMPLES = 20, 100


def chance(benchmark: str, seed: int, index: int) -> random.Random:
    """A source of chance for one drawn case, whichever cases are drawn before it."""
    return random.Random(f"{benchmark}:{seed}:{index}")  # noqa: S311  # no secret


def log_uniform(source: random.Random, low: float, high: float) -> float:
    """A number between two, as often in each octave as in another."""
    return math.exp(source.uniform(math.log(low), math.log(high)))


def compare_kernels(calls: Mapping[str, running.Call], seconds: float) -> Comparison:
    """Interleaved, after a flush of the L2 cache, and without idling: drift affects all alike.

    `calls` are convtime's and its peers'; it samples for `seconds` at most, beyond its least.
    """
    from convtime import compare

    return compare(
        calls,
        method="kernel",
        cache="cold",
        regime="as-is",
        check=None,  # some peers work on other data, or round after other steps
        interference=False,
        warmup=_WARM_UP_SECONDS,
        stop="budget",
        min_samples=_LEAST_SAMPLES,
        max_samples=_MOST_SAMPLES,
        budget=seconds,
    )


def speedups_of(compared: Comparison) -> dict[str, dict[str, float]]:
    """Each peer's time over convtime's with its interval, as summaries.speedup reads them."""
    return {
        peer: summaries.ratio_of(compared, peer, "convtime")
        for peer in compared.measurements
        if peer != "convtime"
    }


def told(compared: Comparison) -> results.Row:
    """What rows have of a comparison of kernels."""
    from common.calls import launches

    measured = compared.measurements
    return {
        "seconds": {name: measurement.median for name, measurement in measured.items()},
        "speedups": speedups_of(compared),
        "samples": len(measured["convtime"].seconds),
        "kernels": {
            name: [kernel for kernel, _grid, _block in launches(measurement.activities)]
            for name, measurement in measured.items()
        },
    }
