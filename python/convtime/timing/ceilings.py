"""Measure the rates that a device reaches."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

import torch

from convtime.core.errors import first_line
from convtime.device.resolve import resolve_device
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Ceilings, Measurement
from convtime.timing.options import Options
from convtime.timing.sampling.measure import measure
from convtime.timing.sampling.reach import without_modes

_BUDGET = 0.2  # seconds for each of the two


def ceilings(device: torch.device | str | int | None = None, *, exclusive: bool = True) -> Ceilings:
    """Measure the rates that a device reaches in a large copy and a large matmul.

    They are measured once per device; on a CPU, once per number of threads, set of CPUs and
    precision of float32 matmuls. The caller's modes (autocast, inference mode, a default device)
    have no effect.

    Args:
        device: a CPU or a CUDA device. Default: the current GPU, or the CPU without a GPU.
        exclusive: as in ``time_op``.

    Raises:
        ValueError: for another device.
    """
    where = resolve_device(device)
    return _measured(where, None if where.type == "cuda" else _CpuConditions.current(), exclusive)


def with_rates(candidate: Candidate, measured: Measurement, options: Options) -> Measurement:
    """Add the device's ceilings to a measurement if the candidate's FLOPs or bytes are given.

    This comes after the timing, because a large copy and a large matmul heat the device.
    """
    if candidate.flops is None and candidate.nbytes is None:
        return measured
    reached, why_not = _ceilings_of(torch.device(measured.device), options.exclusive)
    rates: dict[str, Any] = {
        "flops": candidate.flops,
        "nbytes": candidate.nbytes,
        "ceilings": reached,
        "ceilings_reason": why_not,
    }
    return dataclasses.replace(measured, **rates)


def _ceilings_of(device: torch.device, exclusive: bool) -> tuple[Ceilings | None, str]:
    """Return the ceilings, or None and why they are unavailable: this keeps the measurement."""
    try:
        return ceilings(device, exclusive=exclusive), ""
    except RuntimeError as error:  # for example, if the GPU's memory is full
        return None, f"they could not be measured on {device} ({first_line(error)})"


@dataclasses.dataclass(frozen=True)
class _CpuConditions:
    """Settings that affect the rates of a CPU and that a program may change."""

    threads: int
    cpus: frozenset[int]
    float32_precision: str

    @classmethod
    def current(cls) -> _CpuConditions:
        onednn: Any = torch.backends.mkldnn
        return cls(
            torch.get_num_threads(),
            frozenset(os.sched_getaffinity(0)),
            onednn.matmul.fp32_precision,
        )


@functools.cache  # for each device and its conditions, and how they were measured
def _measured(
    device: torch.device, _conditions: _CpuConditions | None, exclusive: bool
) -> Ceilings:
    on_gpu = device.type == "cuda"
    # Far larger than any cache, and large enough to fill all multiprocessors or cores.
    copied_bytes, size = (1 << 30, 8192) if on_gpu else (1 << 27, 1024)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    with without_modes():
        source = torch.empty(copied_bytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copy = Candidate(target.copy_, source, name="copy")
        copy_seconds = _median(copy, device, exclusive)
        del copy, source, target
        random = torch.Generator(device).manual_seed(0)  # leaves the caller's generator alone
        matrix = torch.randn(size, size, dtype=torch.float32, device=device, generator=random)
        matrix = matrix.to(dtype)
        matmul = Candidate(torch.mm, matrix, matrix, name="matmul")
        matmul_seconds = _median(matmul, device, exclusive)
    return Ceilings(
        bytes_per_second=2 * copied_bytes / copy_seconds,
        flops_per_second=2 * size**3 / matmul_seconds,
        matmul_dtype=str(dtype).removeprefix("torch."),
    )


def _median(candidate: Candidate, device: torch.device, exclusive: bool) -> float:
    options = Options(regime="as-is", budget=_BUDGET, device=device, exclusive=exclusive)
    return measure([candidate], options)[0].median
