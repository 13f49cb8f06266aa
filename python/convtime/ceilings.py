"""The rates that a device reaches, which an operation's own are set against."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from convtime.measurement import Measurement

_BUDGET = 0.2  # seconds for each of the two


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What a device was seen to reach, at the clocks that it had then.

    Attributes:
        bytes_per_second: read and written by a large copy.
        flops_per_second: of a large square matmul of random numbers.
        matmul_dtype: its dtype.
    """

    bytes_per_second: float
    flops_per_second: float
    matmul_dtype: str


_measured: dict[torch.device, Ceilings] = {}


def measure_ceilings(device: torch.device, time_op: Callable[..., Measurement]) -> Ceilings:
    """Measures a device's ceilings with ``time_op``, once in a process."""
    if device not in _measured:
        _measured[device] = _measure(device, time_op)
    return _measured[device]


def _measure(device: torch.device, time_op: Callable[..., Measurement]) -> Ceilings:
    on_gpu = device.type == "cuda"
    # Far larger than any cache; and large enough to fill all multiprocessors, or cores.
    copied_bytes, size = (1 << 30, 8192) if on_gpu else (1 << 27, 1024)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    source = torch.empty(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = time_op(target.copy_, source, budget=_BUDGET)
    del source, target
    matrix = torch.randn(size, size, device=device).to(dtype)
    matmul = time_op(torch.mm, matrix, matrix, budget=_BUDGET)
    return Ceilings(
        bytes_per_second=2 * copied_bytes / copy.median,
        flops_per_second=2 * size**3 / matmul.median,
        matmul_dtype=str(dtype).removeprefix("torch."),
    )
