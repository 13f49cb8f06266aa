"""How far medians of the same operation lie apart in fresh processes: convtime's and triton's.

A row is a process, in which each operation is timed once by time_op with its defaults, and then
once by triton's do_bench. The spread is the range of the medians over the median of the medians.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import accuracy
import results

if TYPE_CHECKING:
    import torch

PROCESSES = 10
OPERATIONS = {
    "memory_bound": "relu 1Mi fp32",
    "conv": "conv 32x64x56x56 fp16 channels_last",
    "under_3us": "relu 4Ki fp32",
}
TOOLS = ("convtime", "triton")


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Spreads of convtime's medians, once two processes have given theirs."""
    summary: dict[str, float] = {"processes": len(rows)}
    if len(rows) > 1:
        for name in OPERATIONS:
            summary[f"{name}_spread"] = _spread([row["convtime"][name] for row in rows])
    return summary


def _spread(medians: list[float]) -> float:
    return (max(medians) - min(medians)) / statistics.median(medians)


def table(rows: list[results.Row]) -> str:
    """Markdown, a line an operation."""
    header = (
        "| operation | convtime (µs) | spread | triton do_bench (µs) | spread |",
        "|---|--:|--:|--:|--:|",
    )
    return "\n".join((*header, *(_line(rows, name) for name in OPERATIONS)))


def _line(rows: list[results.Row], name: str) -> str:
    cells = [OPERATIONS[name]]
    for tool in TOOLS:
        medians = [row[tool][name] for row in rows if name in row[tool]]
        if medians:
            cells += [f"{1e6 * statistics.median(medians):.2f}", f"{100 * _spread(medians):.2f} %"]
        else:
            cells += ["–", "–"]
    return f"| {' | '.join(cells)} |"


def operations(device: torch.device) -> dict[str, Callable[[], object]]:
    import torch
    from torch.nn import functional as F

    def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    x, weight = (
        rand(*shape, dtype=torch.float16).to(memory_format=torch.channels_last)
        for shape in ((32, 64, 56, 56), (64, 64, 3, 3))
    )
    return {
        "memory_bound": functools.partial(torch.relu, rand(1 << 20)),
        "conv": functools.partial(F.conv2d, x, weight, padding=1),
        "under_3us": functools.partial(torch.relu, rand(1 << 12)),
    }


def probe(device: torch.device) -> results.Row:
    """Medians in seconds, in this process; of triton none where it cannot be had."""
    from convtime import time_op

    calls = operations(device)
    ours = {name: time_op(call) for name, call in calls.items()}
    return {
        "convtime": {name: measurement.median for name, measurement in ours.items()},
        "samples": {name: len(measurement.seconds) for name, measurement in ours.items()},
        "methods": {name: measurement.method for name, measurement in ours.items()},
        **accuracy.do_bench_medians(calls),
    }


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()

    from convtime.provenance import provenance

    device = accuracy.find_gpu(options.device)
    if options.probe:
        accuracy.print_result(probe(device))
        return
    file = results.ResultFile("repeatability", summarise, options, provenance(device))
    cases = {f"process {i}": ["--probe", "--device", str(device)] for i in range(1, PROCESSES + 1)}
    for key, arguments in file.pending(cases).items():
        begin = time.perf_counter()
        file.add(key, accuracy.run_fresh(__file__, arguments))
        print(f"{key}: {time.perf_counter() - begin:.1f} s", flush=True)
    print(file.path)


if __name__ == "__main__":
    main()
