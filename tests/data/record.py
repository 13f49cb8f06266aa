"""Records traces.json, the samples that tests replay, on a machine with a GPU.

    python tests/data/record.py > tests/data/traces.json

Each trace is a list of measurements that were taken together, as far as tests need them: name,
times and clocks of every sample in seconds and hertz, what was subtracted, and the conditions.
"""

from __future__ import annotations

import functools
import json
import time
from typing import Any

import torch

import convtime

FIELDS = ("name", "method", "cache", "seconds", "raw_seconds", "overhead", "sm_clocks_hz")


def plain(measurement: convtime.Measurement) -> dict[str, Any]:
    fields = measurement.to_dict()
    kept = {name: fields[name] for name in (*FIELDS, "max_sm_clock_hz")}
    for name in ("seconds", "raw_seconds"):
        kept[name] = [round(value, 10) for value in kept[name]]
    kept["sm_clocks_hz"] = [clock and round(clock) for clock in kept["sm_clocks_hz"]]
    return kept


def record() -> dict[str, Any]:
    matrix = torch.randn(8192, 8192, device="cuda").bfloat16()
    vector = torch.randn(1 << 20, device="cuda")
    torch.mm(matrix, matrix)
    every = functools.partial(convtime.time_op, warmup=1, stop="count")
    time.sleep(2)  # so that the clock is at its top, and the GPU cool
    traces = {
        "matmul from idle": [every(torch.mm, matrix, matrix, cache="warm", max_samples=600)],
        "relu cold": [every(torch.relu, vector, max_samples=300)],
        "relu by events": [every(torch.relu, vector, method="event", max_samples=300)],
    }
    pairs = {
        "the same": (50_000, 50_000),
        "2 % slower": (50_000, 51_000),
    }
    for name, (base, other) in pairs.items():
        comparison = convtime.compare(
            {
                "base": functools.partial(torch.ops.convtime.spin_ns, base),
                "other": functools.partial(torch.ops.convtime.spin_ns, other),
            },
            check=None,
            interference=False,
            stop="count",
            max_samples=200,
        )
        traces[name] = list(comparison.measurements.values())
    return {
        "gpu": torch.cuda.get_device_name(),
        "traces": {name: list(map(plain, found)) for name, found in traces.items()},
    }


if __name__ == "__main__":
    print(json.dumps(record()))
