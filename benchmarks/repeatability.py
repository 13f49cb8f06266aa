"""How far medians of the same operation lie apart in fresh processes: convtime's and triton's.

A row is a process, in which each operation is timed once by time_op with its defaults, and then
once by triton's do_bench. The spread is the range of the medians over the median of the medians.
"""

import itertools
from collections.abc import Callable
from typing import Any

import results
from common import running, summaries

PROCESSES = 10
# Name in the summary: name in the table, and what makes the call of common.operations.Operations
OPERATIONS: dict[str, tuple[str, Callable[[Any], running.Call]]] = {
    "memory_bound": ("relu 1Mi fp32", lambda make: make.relu(1 << 20)),
    "conv": ("conv 32x64x56x56 fp16 channels_last", lambda make: make.conv(32)),
    "under_3us": ("relu 4Ki fp32", lambda make: make.relu(1 << 12)),
    "heavy": ("matmul 6144 bf16", lambda make: make.matmul(6144)),
}


def medians(device: running.Device) -> results.Row:
    from common.calls import do_bench_medians
    from common.operations import Operations

    from convtime import time_op

    operations = Operations(device)
    calls = {name: make(operations) for name, (_, make) in OPERATIONS.items()}
    ours = {name: time_op(call).median for name, call in calls.items()}
    return {"convtime": ours, **do_bench_medians(calls)}


def make_cases(device: running.Device) -> dict[str, running.Measure]:
    return running.in_processes(medians, device, PROCESSES)


def _medians_of(rows: list[results.Row], tool: str, name: str) -> list[float]:
    return [row[tool][name] for row in rows if name in row[tool]]


def summarise(rows: list[results.Row]) -> dict[str, float]:
    found = {name: _medians_of(rows, "convtime", name) for name in OPERATIONS}
    spreads = {f"{name}_spread": summaries.spread(each) for name, each in found.items() if each[1:]}
    return {"processes": len(rows), **spreads}


def table(rows: list[results.Row]) -> str:
    lines = []
    for name, (label, _) in OPERATIONS.items():
        found = (_medians_of(rows, tool, name) for tool in ("convtime", "triton"))
        cells = itertools.chain.from_iterable(map(summaries.median_and_spread, found))
        lines.append((label, *cells))
    header = "operation | convtime (µs): | spread: | triton do_bench (µs): | spread:"
    return summaries.markdown(header, lines)


if __name__ == "__main__":
    running.run("repeatability", make_cases)
