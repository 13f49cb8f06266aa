"""Measures the rates that a device reaches."""

from __future__ import annotations

import functools

import torch

from convtime.device.resolve import resolve_device
from convtime.results.ceilings import Ceilings
from convtime.timing.candidate import Candidate
from convtime.timing.options import Options
from convtime.timing.sampling import measure

_BUDGET = 0.2  # seconds for each of the two


def ceilings(device: torch.device | str | int | None = None) -> Ceilings:
    """The rates that a device reaches in a large copy and a large matmul; measured once.

    Args:
        device: a CPU or a CUDA device; the current GPU unless given, or the CPU without one.

    Raises:
        ValueError: for another device.
    """
    return _measured(resolve_device(device))


@functools.cache
def _measured(device: torch.device) -> Ceilings:
    on_gpu = device.type == "cuda"
    # Far larger than any cache; and large enough to fill all multiprocessors, or cores.
    copied_bytes, size = (1 << 30, 8192) if on_gpu else (1 << 27, 1024)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    source = torch.empty(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_seconds = _median(Candidate("copy", target.copy_, (source,)))
    del source, target
    matrix = torch.randn(size, size, device=device).to(dtype)
    matmul_seconds = _median(Candidate("matmul", torch.mm, (matrix, matrix)))
    return Ceilings(
        bytes_per_second=2 * copied_bytes / copy_seconds,
        flops_per_second=2 * size**3 / matmul_seconds,
        matmul_dtype=str(dtype).removeprefix("torch."),
    )


def _median(candidate: Candidate) -> float:
    return measure([candidate], Options(budget=_BUDGET))[0].median
