"""What calls launch, by CUPTI's records, and what other tools say of their times."""

import functools
import importlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import results
import torch
from torch.utils.benchmark import Timer

import convtime
from common.running import Call, first_line
from convtime.timing.activity import DeviceActivity


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


_ROUNDS = 2
_MOST_LETTERS = 120


def record(calls: Mapping[str, Call]) -> dict[str, tuple[DeviceActivity, ...]]:
    """What the device does for each call, after a first one that is not recorded."""
    measurements = compare_launches(calls, _ROUNDS).measurements
    return {name: measurement.activities for name, measurement in measurements.items()}


def compare_launches(calls: Mapping[str, Call], rounds: int) -> convtime.Comparison:
    """So many rounds after a first one, of calls on the same tensors that meet the same clocks."""
    return convtime.compare(
        calls,
        method="kernel",
        check=None,
        interference=False,
        warmup=1,
        stop="count",
        min_samples=rounds,
        max_samples=rounds,
        budget=60.0,
        placement="as-is",
        regime="as-is",
    )


def compare_counted(calls: Mapping[str, Any], count: int, **options: Any) -> convtime.Comparison:
    """So many samples of each by turns, each after a flush of the L2 cache; results may differ."""
    compared: convtime.Comparison = convtime.compare(
        calls,
        method="kernel",
        cache="cold",
        check=None,
        interference=False,
        stop="count",
        min_samples=count,
        max_samples=count,
        **options,
    )
    return compared


def launches(activities: Sequence[DeviceActivity]) -> list[list[Any]]:
    """Ready for JSON: [name, grid, block] of each."""
    return [
        [shortened(activity.name or activity.kind), activity.grid, activity.block]
        for activity in activities
    ]


def shortened(name: str) -> str:
    """A kernel's name without the end of one that is mostly the parameters of templates."""
    return name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 1] + "…"
