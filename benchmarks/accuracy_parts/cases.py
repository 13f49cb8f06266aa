"""Everything that accuracy.py measures, by the keys of its rows."""

from __future__ import annotations

import functools
from collections.abc import Callable

import results
import torch
from common.running import Measure

from accuracy_parts.cost import measure_cost, probe_cpu_calls, probe_first_use, probe_memory
from accuracy_parts.known_durations import SPINS_NS, measure_spin, stamped_cases
from accuracy_parts.nvbench import measure_nvbench, probe_nvbench
from accuracy_parts.operations import measure_op, operations
from accuracy_parts.quick import measure_quick
from accuracy_parts.rows import CACHES, NVBENCH

NVBENCH_GROUP = 8

# What a fresh process measures.
PROBES: dict[str, Callable[..., results.Row]] = {
    "first-use": probe_first_use,
    "cpu-calls": probe_cpu_calls,
    "memory": probe_memory,
    NVBENCH: probe_nvbench,
}


def make_cases(device: torch.device) -> dict[str, Measure]:
    ops = operations(device)
    cases: dict[str, Measure] = {
        "cost": functools.partial(measure_cost, device),
        "quick": functools.partial(measure_quick, ops),
    }
    for asked_ns in SPINS_NS:
        cases[f"spin/{asked_ns} ns"] = functools.partial(measure_spin, asked_ns)
    cases |= stamped_cases(device)
    for op, make in ops.items():
        for cache in CACHES:
            cases[f"{op}/{cache}"] = functools.partial(measure_op, make, cache)
    names = list(ops)
    for first in range(0, len(names), NVBENCH_GROUP):
        group = names[first : first + NVBENCH_GROUP]
        key = f"{NVBENCH}/{first // NVBENCH_GROUP + 1}"
        cases[key] = functools.partial(measure_nvbench, group, device)
    return cases
