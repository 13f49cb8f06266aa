"""Times between two events of CUDA."""

from typing import Any

import torch

from common.running import Call


def seconds_per_call(call: Call, count: int = 1) -> float:
    """Of calls that follow each other without waiting."""
    event: Any = torch.cuda.Event
    start, end = (event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return 1e-3 * float(start.elapsed_time(end)) / count
