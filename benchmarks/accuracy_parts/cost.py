"""What using convtime costs: time and memory."""

from __future__ import annotations

import collections
import functools
import itertools
import threading
import time
from _thread import get_ident
from pathlib import Path
from typing import Any

import results
import torch
from common.running import Call, run_probe

from convtime import time_op


def measure_cost(device: torch.device) -> results.Row:
    """All of it in one row.

    first_use_s: the first time_op of a fresh process, whose CUDA context and operation are warm.
    default_call_s: later calls of time_op with its defaults, on a kernel of about 5 µs.
    as_is_call_s: the same with placement="as-is".
    default_cpu_call_s: the same on an operation of about 5 µs on the CPU, in one thread.
    loop_call_s, loop_floor_s: one round of the sampling loop (method cpu, which makes no CUDA
        calls) on a function in C that does nothing, and one round of a bare loop in C that calls
        the same function. What is between them is the loop's own.
    device_bytes_*: free memory of the device before, and at its least during, the first time_op,
        with placement="as-is"; the flush buffer, which is asked for, is twice the L2 cache.
    placed_bytes_free_least: the same of a later time_op with its defaults, whose copies of the
        call's tensors take memory, too; not judged.
    host_bytes: by which the process's resident memory grew meanwhile; not judged.
    """
    call_s, floor_s = loop_times()
    return {
        **run_probe("accuracy", "first-use", device),
        **run_probe("accuracy", "cpu-calls", device),
        **run_probe("accuracy", "memory", device),
        "loop_call_s": call_s,
        "loop_floor_s": floor_s,
    }


def loop_times(rounds: int = 5, count: int = 10_000) -> tuple[list[float], list[float]]:
    """Seconds of one round: of the sampling loop, and of a bare loop in C."""
    calls, floors = [], []
    for _ in range(rounds):
        measurement = time_op(
            get_ident, method="cpu", device="cpu", warmup=3, stop="count", max_samples=count
        )
        assert measurement.sampling_seconds is not None
        calls.append(measurement.sampling_seconds / len(measurement.seconds))
        begin = time.perf_counter()
        collections.deque(itertools.starmap(get_ident, itertools.repeat((), count)), maxlen=0)
        floors.append((time.perf_counter() - begin) / count)
    return calls, floors


def _kernel_of_5us(device: torch.device) -> Call:
    return functools.partial(torch.relu, torch.randn(1 << 21, device=device))


def probe_first_use(device: torch.device) -> results.Row:
    call = _kernel_of_5us(device)
    call()
    torch.cuda.synchronize()

    seconds, medians = _default_calls(call)
    first, *later = seconds
    as_is, _ = _default_calls(call, placement="as-is")
    return {
        "first_use_s": first,
        "default_call_s": later,
        "default_call_medians": medians,
        "as_is_call_s": as_is[1:],
    }


def probe_cpu_calls(_: torch.device) -> results.Row:
    # A running sum has no use for a second thread, which would cost more than 5 µs to wake.
    seconds, medians = _default_calls(functools.partial(torch.cumsum, torch.randn(5 << 10), 0))
    return {"default_cpu_call_s": seconds[1:], "default_cpu_call_medians": medians}


def _default_calls(call: Call, count: int = 11, **options: Any) -> tuple[list[float], list[float]]:
    """Wall time of time_op with its defaults, time after time, and the medians that it gave."""
    seconds, medians = [], []
    for _ in range(count):
        begin = time.perf_counter()
        medians.append(time_op(call, **options).median)
        seconds.append(time.perf_counter() - begin)
    return seconds, medians


def probe_memory(device: torch.device) -> results.Row:
    call = _kernel_of_5us(device)
    call()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info(device)[0]
    resident = _resident_bytes()
    least = _least_free_bytes(device, lambda: time_op(call, placement="as-is"))
    properties = torch.cuda.get_device_properties(device)
    return {
        "device_bytes_free_before": before,
        "device_bytes_free_least": least,
        "flush_bytes": 2 * properties.L2_cache_size,
        "host_bytes": _resident_bytes() - resident,
        "placed_bytes_free_least": _least_free_bytes(device, lambda: time_op(call)),
    }


def _least_free_bytes(device: torch.device, call: Call) -> int:
    free = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            free.append(torch.cuda.mem_get_info(device)[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return min([*free, torch.cuda.mem_get_info(device)[0]])


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    return 0
