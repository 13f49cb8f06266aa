"""What the hardware counts of a convolution in the training loop, and by itself."""

from collections.abc import Callable
from typing import Any

import results
import torch

import convtime
from convtime.counting.counters import CounterCache
from convtime.counting.results import KernelCounters
from forum_thread import DRAM_READ, DRAM_WRITE
from forum_thread.net import Training

GROUPS = ("time", "dram", "l2", "sm", "occupancy", "tensor")
REPEATS = 10  # of the time and of what is read and written; all else is counted once

#: All groups, and once more what is repeated.
_Counted = tuple[convtime.Counters, convtime.Counters]


def measure(device: torch.device, name: str) -> results.Row:
    """All groups of metrics of a layer's kernel, or why they cannot be read.

    In the loop, the convolution is called where a step has come to it. By itself, it is called
    after a step; with a cache full of lines that are to be written back, its input's among them,
    which is written last as in the loop (``dirty``); after a flush that wrote (``cold``) or read
    (``clean``), where its input has to be read first; and after itself (``warm``).
    """
    training = Training(device)
    try:
        found = _count_everywhere(device, training, name)
    except convtime.CountersUnavailable as error:
        return {"layer": name, "reason": str(error)}
    # The kernel that the convolution's time goes to.
    kernel = max(
        found["warm"][0].kernels, key=lambda each: each.values.get("gpu__time_duration.sum") or 0
    )
    counted = {place: _of_kernel(each, kernel) for place, each in found.items()}
    if counted["in_place"] is not None:
        counted["in_place"]["launches"] = _launches(training.forward, kernel)
    return {
        "layer": name,
        "count": training.isolated(name).count,
        "kernel": kernel.name,
        "units": dict(found["warm"][0].units),
        "counted": counted,
    }


def _count_everywhere(device: torch.device, training: Training, name: str) -> dict[str, _Counted]:
    alone, in_place = training.isolated(name), training.in_place(name)
    dirty = alone.behind(lambda: torch.ops.convtime.flush_l2())
    return {
        "in_place": _count(in_place, device, "warm", in_place.run_until_layer),
        "behind_the_step": _count(alone, device, "warm", alone.behind(training.step)),
        "dirty": _count(alone, device, "warm", dirty),
        "cold": _count(alone, device, "cold"),
        "clean": _count(alone, device, "cold-clean"),
        "warm": _count(alone, device, "warm"),
    }


def _count(
    call: Callable[[], object],
    device: torch.device,
    cache: CounterCache,
    before: Callable[[], None] | None = None,
) -> _Counted:
    # Each call anew, so that what it finds in the cache is what differs between these.
    shared: dict[str, Any] = {"cache": cache, "before": before, "replay": "call", "device": device}
    every = convtime.counters(call, metrics=GROUPS, **shared)
    moved = [metric for metric in every.units if metric in (*DRAM_READ, *DRAM_WRITE)]
    return every, convtime.counters(call, metrics=("time", *moved), repeats=REPEATS, **shared)


def _launches(call: Callable[[], object], kernel: KernelCounters) -> int:
    with convtime.record("kernel") as recording:
        call()
    if recording.fault or recording.method != "kernel":
        raise RuntimeError(recording.fault or recording.method_reason)
    launched = (recording.launches[work.launch] for work in recording.work)
    return sum((each.name, each.grid) == (kernel.name, kernel.grid) for each in launched)


def _of_kernel(counted: _Counted, kernel: KernelCounters) -> results.Row | None:
    """Launches of a call, and what one launch has of each metric; None without the kernel."""
    launches = 0
    values: dict[str, float | None] = {}
    for counters in counted:
        for each in counters.kernels:
            if (each.name, each.grid) == (kernel.name, kernel.grid):
                launches = each.launches
                values |= each.values
    known = {metric: value for metric, value in values.items() if value is not None}
    return {"launches": launches, "values": known} if launches else None
