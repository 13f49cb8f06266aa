"""What is measured besides operations: costs, quick calls and known durations."""

import collections
import functools
import itertools
import random
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from typing import Any

import results
import torch
from common.operations import Operation, operation
from common.running import Call, Measure, beside, run, run_fresh, seconds_of
from common.truth import median_of_stamps

from accuracy import CACHES, STAMPED_REFERENCE_NS
from accuracy.operations import OPERATIONS, PASSES, MethodPasses, measure_op
from convtime import time_op
from convtime.timing.options import Cache


def make_cases(device: torch.device) -> dict[str, Measure]:
    cases: dict[str, Measure] = {
        "cost": functools.partial(measure_cost, device),
        "quick": functools.partial(measure_quick, device),
        **{f"spin/{asked} ns": functools.partial(measure_spin, asked) for asked in SPINS_NS},
    }
    spun = [(blocks, 1) for blocks in STAMPED_BLOCKS]
    for grid in (*spun, _copy_grid(1), _copy_grid(ONE_WAVE_MIB)):
        for asked in (STAMPED_REFERENCE_NS, *((4_992, 100_000) if grid in spun else ())):
            key = f"stamped/spin {asked} ns, {grid[0]} x {grid[1]}"
            cases[key] = functools.partial(measure_stamped_spin, grid, asked)
    for mib in STAMPED_MIB:
        cases[f"stamped/copy {mib} MiB"] = functools.partial(measure_stamped_copy, mib, device)
    for op, cache in itertools.product(OPERATIONS, CACHES):
        cases[f"{op}/{cache}"] = functools.partial(measure_op, op, cache, device)
    return cases


def measure_cost(device: torch.device) -> results.Row:
    """All of it in one row; what time_op costs is measured in fresh processes.

    loop_call_s, loop_floor_s: one round of the sampling loop (method cpu, which makes no CUDA
        calls) on a function in C that does nothing, and one round of a bare loop in C that calls
        the same function. What is between them is the loop's own.
    device_bytes_*: free memory of the device before, and at its least during, the first time_op,
        with placement="as-is"; the flush buffer, which is asked for, is twice the L2 cache.
    """
    calls, floors, count = [], [], 10_000
    for _ in range(5):
        measurement = time_op(
            get_ident, method="cpu", device="cpu", warmup=3, stop="count", max_samples=count
        )
        assert measurement.sampling_seconds is not None
        calls.append(measurement.sampling_seconds / len(measurement.seconds))
        begin = time.perf_counter()
        collections.deque(itertools.starmap(get_ident, itertools.repeat((), count)), maxlen=0)
        floors.append((time.perf_counter() - begin) / count)
    return {
        **run_fresh(first_use, device),
        **run_fresh(cpu_calls, device),
        **run_fresh(memory, device),
        "loop_call_s": calls,
        "loop_floor_s": floors,
    }


def _warm_kernel_of_5us(device: torch.device) -> Call:
    call = functools.partial(torch.relu, torch.randn(1 << 21, device=device))
    call()
    torch.cuda.synchronize()
    return call


def first_use(device: torch.device) -> results.Row:
    call = _warm_kernel_of_5us(device)
    first, *later = _default_calls(call)
    as_is = _default_calls(call, placement="as-is")
    return {"first_use_s": first, "default_call_s": later, "as_is_call_s": as_is[1:]}


def cpu_calls(_: torch.device) -> results.Row:
    # A running sum has no use for a second thread, which would cost more than 5 µs to wake.
    seconds = _default_calls(functools.partial(torch.cumsum, torch.randn(5 << 10), 0))
    return {"default_cpu_call_s": seconds[1:]}


def _default_calls(call: Call, **options: Any) -> list[float]:
    return [seconds_of(functools.partial(time_op, call, **options)) for _ in range(11)]


def memory(device: torch.device) -> results.Row:
    call = _warm_kernel_of_5us(device)
    before = torch.cuda.mem_get_info(device)[0]
    free = []

    def watch(ended: threading.Event) -> None:
        while not ended.wait(0.001):
            free.append(torch.cuda.mem_get_info(device)[0])

    with beside(watch):
        time_op(call, placement="as-is")
    return {
        "device_bytes_free_before": before,
        "device_bytes_free_least": min([*free, torch.cuda.mem_get_info(device)[0]]),
        "flush_bytes": 2 * torch.cuda.get_device_properties(device).L2_cache_size,
    }


_TURNS = 4
_REST_SECONDS = 0.2
_LONGEST_SECONDS = 2e-3


def measure_quick(device: torch.device) -> results.Row:
    """Every operation and cache, each time in another order."""
    cases: list[tuple[str, Cache, Operation]] = []
    for op in OPERATIONS:
        call = operation(op, device)
        if time_op(call, quick=True).median <= _LONGEST_SECONDS:
            cases += [(f"{op}/{cache}", cache, call) for cache in CACHES]
    found: dict[str, results.Row] = {
        name: {"full": [], "tick": 0.0, "quick": [], "quick_s": []} for name, _, _ in cases
    }

    def time_fully() -> None:
        for name, cache, call in cases:
            time.sleep(_REST_SECONDS)
            measured = time_op(call, cache=cache)
            found[name]["full"].append(measured.median)
            found[name]["tick"] = measured.clock_tick

    order = random.Random(1)  # noqa: S311  # not a secret
    time_fully()
    for _, cache, call in cases:  # a process's first quick call makes its buffers
        time_op(call, cache=cache, quick=True)
    for _ in range(_TURNS):
        for name, cache, call in order.sample(cases, len(cases)):
            begin = time.perf_counter()
            measured = time_op(call, cache=cache, quick=True)
            found[name]["quick_s"].append(time.perf_counter() - begin)
            found[name]["quick"].append(measured.median)
    time_fully()
    return {"ops": found}


# Whole ticks of 32 ns, since that is what a kernel spins for.
SPINS_NS = (1_024, 2_016, 4_992, 9_984, 100_000, 1_000_000)
STAMPED_BLOCKS = (1, 132, 528)
STAMPED_MIB = (1, 16, 256)
ONE_WAVE_MIB = 16  # of a copy whose blocks all fit on the device at a time
COPY_GRID = (32_768, 256)  # bytes of a block of copy_stamped, and its threads

Grid = tuple[int, int]
Stamped = Callable[[], torch.Tensor]


def measure_spin(asked_ns: int) -> results.Row:
    passes = MethodPasses(lambda: torch.ops.convtime.spin_ns(asked_ns), "kernel", "warm", 50)
    for _ in range(PASSES):
        passes.take()
    return {"asked_ns": asked_ns, "kernel": passes.row}


def measure_stamped_spin(grid: Grid, asked_ns: int) -> results.Row:
    spin: Stamped = functools.partial(torch.ops.convtime.spin_ns, asked_ns, *grid)
    return {"grid": grid, "reference_grid": grid, "asked_ns": asked_ns, **_stamped(spin, "warm")}


def measure_stamped_copy(mib: int, device: torch.device) -> results.Row:
    source = torch.randn(mib << 18, device=device)
    return {
        "grid": _copy_grid(mib),
        "reference_grid": _copy_grid(min(mib, ONE_WAVE_MIB)),
        "asked_ns": None,
        **_stamped(lambda: torch.ops.convtime.copy_stamped(source)[1], "cold"),
    }


def _copy_grid(mib: int) -> Grid:
    return (mib << 20) // COPY_GRID[0], COPY_GRID[1]


def _stamped(call: Stamped, cache: Cache) -> results.Row:
    passes = MethodPasses(call, "kernel", cache, 50)
    stamps = []
    for _ in range(PASSES):
        passes.take()
        stamps.append(median_of_stamps(call, 50, cold=cache == "cold"))
    return {"cache": cache, "kernel": passes.row, "stamps": stamps}


if __name__ == "__main__":
    run("accuracy", make_cases)
