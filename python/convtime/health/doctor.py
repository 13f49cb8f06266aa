"""Inspect a machine and run timings that show whether its results are trustworthy."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from convtime.core.errors import one_line
from convtime.core.load import _C
from convtime.device import nvml, state
from convtime.device.clocks import ClockMonitor
from convtime.device.provenance import provenance
from convtime.device.resolve import resolve_device
from convtime.health.examination import AS_IS, Examination, KnownDuration, OperationTiming
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.options import Method, Options, Regime
from convtime.timing.sampling.measure import measure
from convtime.timing.time_op import ceilings, time_op

_BUDGET = 0.1  # seconds for each of about thirty timings; more would exceed 20 s in total
_GPU_METHODS: tuple[Method, ...] = ("kernel", "event", "graph", "sync", "cpu")
_REGIMES: tuple[Regime, ...] = ("burst", "sustained")


def doctor(device: torch.device | str | int | None = None) -> Examination:
    """Check whether timings can be trusted on this machine, as the command ``convtime doctor``.

    Inspects the machine, then times kernels of known duration and a few operations. Takes up to
    20 s on a GPU and changes no settings.

    Args:
        device: GPU or CPU to examine. Default: the current GPU, or the CPU without a GPU.

    Returns:
        The examination; its ``findings`` are the results of the checks.

    Raises:
        ValueError: for another device.
    """
    device = resolve_device(device)
    began = time.perf_counter()
    cpu = state.cpu_state()  # before convtime adds to the load
    on_gpu = device.type == "cuda"
    utilization = state.utilization(device) if on_gpu else None
    monitor = ClockMonitor(device, interval=0.1) if on_gpu else None
    with monitor or contextlib.nullcontext():
        known_durations = tuple(_known_durations(device))
        operations = tuple(_operations(device))
        reached = ceilings(device)
    gpu, gpu_reason = None, ""
    if monitor is not None:
        try:
            gpu = state.gpu_state(device, utilization, monitor.readings)
        except nvml.NvmlUnavailableError as error:
            gpu_reason = str(error)
    return Examination(
        cpu=cpu,
        gpu=gpu,
        gpu_reason=gpu_reason,
        known_durations=known_durations,
        operations=operations,
        ceilings=reached,
        seconds=time.perf_counter() - began,
        provenance=provenance(device),
        kernel_cache=state.kernel_cache() if on_gpu else None,
    )


def _known_durations(device: torch.device) -> Iterator[KnownDuration]:
    for method in _GPU_METHODS if device.type == "cuda" else ("cpu",):
        if method == "cpu":
            spin, durations, where = _spin_host, (100_000, 500_000), torch.device("cpu")
        else:
            spin, durations, where = torch.ops.convtime.spin_ns, (20_000, 100_000), device
        expected = (durations[1] - durations[0]) * 1e-9
        options = Options(method=method, cache="warm", device=where, budget=2 * _BUDGET)
        try:
            # Interleaved: the host's launch and wait times drift by microseconds.
            short, long = measure([Candidate(spin, each) for each in durations], options)
        except RuntimeError as error:
            yield KnownDuration(method, expected, None, None, reason=one_line(error))
        else:
            yield _known_duration(method, expected, short, long)


def _known_duration(
    method: Method, expected: float, short: Measurement, long: Measurement
) -> KnownDuration:
    """Return the difference between two measurements taken in the same rounds."""
    differences = [more - less for less, more in zip(short.seconds, long.seconds, strict=True)]
    low, high, _, _ = _C.median_interval(differences, (), long.batches, long.clock_tick, 0.0)
    return KnownDuration(
        method=method,
        expected=expected,
        measured=statistics.median(differences),
        spread=long.iqr / long.median,
        interval=(low, high) if math.isfinite(low) and math.isfinite(high) else None,
    )


def _spin_host(nanoseconds: int) -> None:
    # Independent of the clock that the host methods read, and never adjusted.
    clock = time.CLOCK_MONOTONIC_RAW
    end = time.clock_gettime_ns(clock) + nanoseconds
    while time.clock_gettime_ns(clock) < end:
        pass


def _operations(device: torch.device) -> Iterator[OperationTiming]:
    def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    on_gpu = device.type == "cuda"
    small = random(4096)
    large = random((64 if on_gpu else 1) << 20)
    size, dtype = (4096, torch.bfloat16) if on_gpu else (512, torch.float32)
    matrix = random(size, size, dtype=dtype)
    image_dtype, batch = (torch.float16, 32) if on_gpu else (torch.float32, 1)
    image = random(batch, 64, 56, 56, dtype=image_dtype).to(memory_format=torch.channels_last)
    weight = random(64, 64, 3, 3, dtype=image_dtype).to(memory_format=torch.channels_last)
    matmul = f"{_name(matrix)} matmul"
    operations: dict[str, Callable[[], object]] = {
        f"{_name(small)} relu": lambda: torch.relu(small),
        f"{_name(large)} relu": lambda: torch.relu(large),
        matmul: lambda: torch.mm(matrix, matrix),
        f"{_name(image)} conv 3×3": lambda: F.conv2d(image, weight, padding=1),
    }
    for name, fn in operations.items():
        for method in _GPU_METHODS if on_gpu else ("cpu",):
            yield _timed(name, fn, device, method)
    if on_gpu:
        for regime in _REGIMES:
            yield _timed(matmul, operations[matmul], device, "auto", regime)


def _name(tensor: torch.Tensor) -> str:
    return f"{'×'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"


def _timed(
    name: str,
    fn: Callable[[], object],
    device: torch.device,
    method: Method,
    regime: Regime = AS_IS,
) -> OperationTiming:
    try:
        measured = time_op(fn, method=method, device=device, budget=_BUDGET, regime=regime)
    except RuntimeError as error:
        return OperationTiming(name, method, regime, None, None, None, one_line(error))
    if measured.regime != regime:
        return OperationTiming(name, method, regime, None, None, None, measured.regime.reason)
    return OperationTiming(
        name,
        measured.method.used,
        regime,
        measured.median,
        measured.iqr / measured.median,
        measured.median_interval,
    )
