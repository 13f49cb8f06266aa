"""What calls launch, by CUPTI's records, and what other tools say of their times."""

import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import results
import torch
from torch.utils.benchmark import Timer

import convtime
from common.cuda import seconds_per_call
from common.running import AS_IS, PLAIN, Call, counted, first_line, seconds_of
from convtime.timing.activity import DeviceActivity

_UNAVAILABLE = (ImportError, RuntimeError, AttributeError)


def do_bench_medians(calls: Mapping[str, Call]) -> results.Row:
    """As "triton", do_bench's median of each call, in seconds; or none, and the reason."""
    try:
        return {"triton": {name: _triton("do_bench", call) for name, call in calls.items()}}
    except _UNAVAILABLE as error:
        return {"triton": {}, "triton_reason": first_line(error)}


def measure_peers(call: Call) -> results.Row:
    """What each tool says, as a median where it can give one."""

    def with_wait() -> None:
        call()
        torch.cuda.synchronize()

    timer: Any = Timer(stmt="call()", globals={"call": call})
    tools: dict[str, Callable[[], float]] = {
        "triton do_bench": lambda: _triton("do_bench", call),
        "triton do_bench_cudagraph": lambda: _triton("do_bench_cudagraph", call),
        "torch Timer": lambda: timer.blocked_autorange(min_run_time=0.1).median,
        "events": lambda: statistics.median(seconds_per_call(call) for _ in range(30)),
        "sync": lambda: statistics.median(seconds_of(with_wait) for _ in range(30)),
    }
    return {name: _try(tool) for name, tool in tools.items()}


def _try(tool: Callable[[], float]) -> results.Row:
    try:
        return {"seconds": tool()}
    except _UNAVAILABLE as error:
        return {"reason": first_line(error)}


def _triton(function: str, call: Call) -> float:
    testing: Any = importlib.import_module("triton.testing")
    return 1e-3 * float(getattr(testing, function)(call, return_mode="median"))


_MOST_LETTERS = 120


def record(calls: Mapping[str, Call]) -> dict[str, tuple[DeviceActivity, ...]]:
    """What the device does for each call, after a first one that is not recorded."""
    measurements = compare_launches(calls, rounds=2).measurements
    return {name: measurement.activities for name, measurement in measurements.items()}


def compare_launches(calls: Mapping[str, Call], rounds: int) -> convtime.Comparison:
    """So many rounds after a first one, of calls on the same tensors that meet the same clocks."""
    options = {**PLAIN, **AS_IS, **counted(rounds)}
    compared: convtime.Comparison = convtime.compare(
        calls, method="kernel", warmup=1, budget=60.0, **options
    )
    return compared


def compare_counted(calls: Mapping[str, Any], count: int, **options: Any) -> convtime.Comparison:
    """So many samples of each by turns, each after a flush of the L2 cache; results may differ."""
    options |= {**PLAIN, **counted(count)}
    compared: convtime.Comparison = convtime.compare(
        calls, method="kernel", cache="cold", **options
    )
    return compared


def launches(activities: Sequence[DeviceActivity]) -> list[list[Any]]:
    return [
        [shortened(activity.name or activity.kind), activity.grid, activity.block]
        for activity in activities
    ]


def shortened(name: str) -> str:
    """A kernel's name without the end of one that is mostly the parameters of templates."""
    return name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 1] + "…"
