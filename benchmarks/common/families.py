"""Benchmarks whose cases are drawn from families by a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import results

from common import running, summaries
from common.running import PLAIN

if TYPE_CHECKING:
    from convtime.timing.comparison import Comparison

SEED = 0


def chance(benchmark: str, seed: int, index: int) -> random.Random:
    return random.Random(f"{benchmark}:{seed}:{index}")  # noqa: S311  # no secret


def log_uniform(source: random.Random, low: float, high: float) -> float:
    return math.exp(source.uniform(math.log(low), math.log(high)))


def compare_kernels(calls: Mapping[str, running.Call], seconds: float) -> Comparison:
    """Interleaved, after a flush of the L2 cache, and without idling: drift affects all alike.

    `calls` are convtime's and its peers'; it samples for `seconds` at most, beyond its least.
    """
    from convtime import compare

    # Some peers work on other data, or round after other steps.
    options = {**PLAIN, "stop": "budget", "min_samples": 20, "max_samples": 100}
    compared: Comparison = compare(
        calls, method="kernel", cache="cold", regime="as-is", warmup=0.05, budget=seconds, **options
    )
    return compared


def speedups_of(compared: Comparison) -> dict[str, dict[str, float]]:
    return {
        peer: summaries.ratio_of(compared, peer, "convtime")
        for peer in compared.measurements
        if peer != "convtime"
    }


def row_of(compared: Comparison) -> results.Row:
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
