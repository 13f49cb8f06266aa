"""How far medians of the same operation lie apart in fresh processes: convtime's and triton's.

A row is a process, in which each operation is timed once by time_op with its defaults, and then
once by triton's do_bench. The spread is the range of the medians over the median of the medians.
"""

import itertools

import results
from common import running, summaries

PROCESSES = 10
OPERATIONS = {
    "memory_bound": "relu 1Mi fp32",
    "conv": "conv 32x64x56x56 fp16 channels_last",
    "under_3us": "relu 4Ki fp32",
    "heavy": "matmul 6144 bf16",
}


def medians(device: running.Device) -> results.Row:
    from common.calls import do_bench_medians
    from common.operations import operation

    from convtime import time_op

    calls = {name: operation(op, device) for name, op in OPERATIONS.items()}
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
    for name, op in OPERATIONS.items():
        found = (_medians_of(rows, tool, name) for tool in ("convtime", "triton"))
        cells = itertools.chain.from_iterable(map(summaries.median_and_spread, found))
        lines.append((op, *cells))
    header = "operation | convtime (µs): | spread: | triton do_bench (µs): | spread:"
    return summaries.markdown(header, lines)


if __name__ == "__main__":
    running.run("repeatability", make_cases)
