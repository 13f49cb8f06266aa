"""Other tools' times of a call, each with its own defaults."""

from __future__ import annotations

import functools
import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import results
import torch
from torch.utils.benchmark import Timer

from common.running import Call, first_line


def do_bench_medians(calls: Mapping[str, Call]) -> results.Row:
    """As "triton", do_bench's median of each call, in seconds; or none, and the reason."""
    try:
        return {"triton": {name: _triton("do_bench", call) for name, call in calls.items()}}
    except (ImportError, RuntimeError, AttributeError) as error:
        return {"triton": {}, "triton_reason": first_line(error)}


def measure_peers(call: Call) -> results.Row:
    """What each tool says, as a median where it can give one."""
    return {name: _try(tool, call) for name, tool in PEERS.items()}


def _try(tool: Callable[[Call], float], call: Call) -> results.Row:
    try:
        return {"seconds": tool(call)}
    except (ImportError, RuntimeError, AttributeError) as error:
        return {"reason": first_line(error)}


def _triton(function: str, call: Call) -> float:
    testing: Any = importlib.import_module("triton.testing")
    return 1e-3 * float(getattr(testing, function)(call, return_mode="median"))


def _torch_timer(call: Call) -> float:
    timer: Any = Timer(stmt="call()", globals={"call": call})
    return float(timer.blocked_autorange(min_run_time=0.1).median)


def _plain_events(call: Call) -> float:
    event: Any = torch.cuda.Event
    samples: list[float] = []
    for _ in range(30):
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        samples.append(1e-3 * start.elapsed_time(end))
    return statistics.median(samples)


def _plain_sync(call: Call) -> float:
    samples = []
    for _ in range(30):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples)


PEERS: dict[str, Callable[[Call], float]] = {
    "triton do_bench": functools.partial(_triton, "do_bench"),
    "triton do_bench_cudagraph": functools.partial(_triton, "do_bench_cudagraph"),
    "torch Timer": _torch_timer,
    "events": _plain_events,
    "sync": _plain_sync,
}
