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
TOOLS = ("convtime", "triton")


def summarise(rows: list[results.Row]) -> dict[str, float]:
    summary: dict[str, float] = {"processes": len(rows)}
    if len(rows) > 1:
        for name in _measured(rows):
            summary[f"{name}_spread"] = summaries.spread([row["convtime"][name] for row in rows])
    return summary


def _measured(rows: list[results.Row]) -> list[str]:
    return [name for name in OPERATIONS if all(name in row["convtime"] for row in rows)]


def table(rows: list[results.Row]) -> str:
    lines = []
    for name in _measured(rows):
        found = ([row[tool][name] for row in rows if name in row[tool]] for tool in TOOLS)
        cells = itertools.chain.from_iterable(map(summaries.median_and_spread, found))
        lines.append((OPERATIONS[name], *cells))
    header = "operation | convtime (µs): | spread: | triton do_bench (µs): | spread:"
    return summaries.markdown(header, lines)


def operations(device: running.Device) -> dict[str, running.Call]:
    from common.operations import Operations

    make = Operations(device)
    calls = (make.relu(1 << 20), make.conv(32), make.relu(1 << 12), make.matmul(6144))
    return dict(zip(OPERATIONS, calls, strict=True))


def probe(device: running.Device) -> results.Row:
    from common.calls import do_bench_medians

    from convtime import time_op

    calls = operations(device)
    ours = {name: time_op(call).median for name, call in calls.items()}
    return {"convtime": ours, **do_bench_medians(calls)}


def make_cases(device: running.Device) -> dict[str, running.Measure]:
    return running.in_processes("repeatability", "medians", device, PROCESSES)


if __name__ == "__main__":
    running.run("repeatability", __doc__, summarise, make_cases, probes={"medians": probe})
