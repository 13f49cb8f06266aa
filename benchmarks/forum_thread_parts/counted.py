"""What the hardware counts of a convolution in the training loop, and by itself."""

from __future__ import annotations

from typing import Any

import results
import torch

import convtime
from forum_thread_parts.net import Size, Training

GROUPS = ("time", "dram", "l2", "sm", "occupancy", "tensor")
REPEATS = 10


def measure(device: torch.device, size: Size, name: str) -> results.Row:
    """All groups of metrics of a layer's kernel, or why they cannot be read.

    By itself, the convolution is called behind itself (``warm``), behind a cache full of lines that
    are to be written back (``dirty``) and of lines that are not (``clean``), and behind a step.
    """
    training = Training(device, size)
    call = training.isolated(name)
    # Each call anew, so that what it finds in the cache is what differs between these.
    shared: dict[str, Any] = {
        "metrics": GROUPS,
        "repeats": REPEATS,
        "replay": "call",
        "device": device,
    }
    try:
        alone = {
            "warm": convtime.counters(call, cache="warm", **shared),
            "dirty": convtime.counters(call, cache="cold", **shared),
            "clean": convtime.counters(call, cache="cold-clean", **shared),
            "behind_the_step": convtime.counters(
                call, cache="warm", setup=call.behind(training.step), **shared
            ),
        }
        step = convtime.counters(training.step, cache="warm", **shared)
    except convtime.CountersUnavailable as error:
        return {"layer": name, "reason": str(error)}
    # The kernel that the convolution's time goes to.
    kernel = max(
        alone["warm"].kernels, key=lambda each: each.values.get("gpu__time_duration.sum") or 0
    )
    found = {
        place: _of_kernel(counted, kernel) for place, counted in {"in_place": step, **alone}.items()
    }
    return {
        "layer": name,
        "count": call.count,
        "kernel": kernel.name,
        "units": dict(step.units),
        "counted": found,
    }


def _of_kernel(counted: convtime.Counters, kernel: convtime.KernelCounters) -> results.Row | None:
    """Launches of a call, and what one launch has of each metric; None without the kernel."""
    same = [
        each for each in counted.kernels if (each.name, each.grid) == (kernel.name, kernel.grid)
    ]
    if not same:
        return None
    launches = sum(each.launches for each in same)
    values = {}
    for metric in same[0].values:
        known = [(each.launches, each.values[metric]) for each in same]
        if all(value is not None for _, value in known):
            values[metric] = sum(count * (value or 0) for count, value in known) / launches
    return {"launches": launches, "values": values}
