"""What many shapes leave behind: the process's memory, and the plans that are kept."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import results
import torch

import convtime

_SHAPES = 12_000  # more than the 10,000 plans that are kept
_STEP = 2_000


def measure_memory(
    device: torch.device, deadline: float, shapes: int = _SHAPES
) -> results.Row | None:
    """What is left behind by many shapes: the process's memory on the host, and plans kept.

    None where time.monotonic() comes to the deadline before all shapes have had their turn.
    """
    memory = []
    w = torch.randn(8, 8, 1, 1, device=device, dtype=torch.float16)
    for index in range(shapes):
        if index % _STEP == 0:
            memory.append(_memory_now(index))
        if time.monotonic() > deadline:
            print(f"note: memory: there was time for {index} shapes only, so it is not recorded")
            return None
        x = torch.empty(1, 8, 1 + index // 128, 1 + index % 128, device=device, dtype=w.dtype)
        convtime.ops.conv2d(x, w)
    memory.append(_memory_now(shapes))
    return {"memory": memory}


def _memory_now(shapes: int) -> results.Row:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "shapes": shapes,
        "host_bytes": pages * resource.getpagesize(),
        "device_bytes": torch.cuda.memory_allocated(),
        "plans": len(convtime.plan_cache()),
    }
