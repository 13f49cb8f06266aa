"""The operations that the gate watches, each on as much data as it is told."""

import functools
from collections.abc import Callable

import torch
from torch.nn import functional as F

Call = functools.partial[torch.Tensor]  # with all of its arguments


def _relu(device: torch.device, rows: int) -> Call:
    return functools.partial(torch.relu, torch.randn(rows, 1024, device=device))


def _layer_norm(device: torch.device, rows: int) -> Call:
    return functools.partial(F.layer_norm, torch.randn(rows, 768, device=device), (768,))


def _conv(device: torch.device, rows: int) -> Call:
    """Of one high image, which can grow by less than one of many images."""
    x, weight = (
        torch.randn(shape, device=device, dtype=torch.float16).to(memory_format=torch.channels_last)
        for shape in ((1, 64, rows, 56), (64, 64, 3, 3))
    )
    return functools.partial(F.conv2d, x, weight, padding=1)


def _matmul(device: torch.device, inner: int) -> Call:
    a, b = (
        torch.randn(shape, device=device, dtype=torch.bfloat16)
        for shape in ((4096, inner), (inner, 4096))
    )
    return functools.partial(torch.mm, a, b)


def _logcumsumexp(_device: torch.device, count: int) -> Call:
    """On one thread, a chain of results that each wait for the one before.

    What has independent work to do takes longer while a neighbour has the core's other thread, by
    a tenth or a third from one second to the next, and small lgammas by where their data lie. What
    is left is the core's clock, which ranges over a tenth where others use the machine.
    """
    return functools.partial(torch.logcumsumexp, torch.linspace(-1, 1, count), 0)


#: What makes each; rows, inner dimension (a matmul's tiles leave only that one to grow evenly) or
#: elements; and larger amounts, among which is one that takes 5 % longer.
_OPERATIONS: dict[str, tuple[Callable[[torch.device, int], Call], int, range]] = {
    "relu 1Mi": (_relu, 1024, range(1054, 1175, 10)),
    "layer_norm 8192x768": (_layer_norm, 8192, range(8442, 9043, 50)),
    "conv 1x64x7168x56 fp16 nhwc": (_conv, 7168, range(7392, 7813, 28)),
    "matmul 4096 bf16": (_matmul, 4096, range(4176, 4417, 16)),
    "logcumsumexp 8192 on the CPU": (_logcumsumexp, 8192, range(8400, 8801, 40)),
}
ON_CPU = ("logcumsumexp 8192 on the CPU",)
SIZES = {name: size for name, (_, size, _) in _OPERATIONS.items()}
LARGER = {name: larger for name, (_, _, larger) in _OPERATIONS.items()}


def names_on(device: torch.device) -> tuple[str, ...]:
    """Those that a machine can run."""
    return tuple(SIZES) if device.type == "cuda" else ON_CPU


def call_of(name: str, device: torch.device, size: int) -> Call:
    make, *_ = _OPERATIONS[name]
    return make(device, size)
