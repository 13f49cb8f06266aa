"""The operations that the gate watches, each on as much data as it is told."""

import functools

import torch
from common.operations import Operation, operation

ON_CPU = ("logcumsumexp 8192 on the CPU",)
#: By its name in rows: the operation with a place for its amount of data (a matmul's tiles leave
#: only the inner dimension to grow evenly, and one high image can grow by less than one of many);
#: that amount; and larger ones, among which is one that takes 5 % longer.
_OPERATIONS = {
    "relu 1Mi": ("relu {}x1024", 1024, range(1054, 1175, 10)),
    "layer_norm 8192x768": ("layer_norm {}x768", 8192, range(8442, 9043, 50)),
    "conv 1x64x7168x56 fp16 nhwc": ("conv 1x64x{}x56 fp16 nhwc", 7168, range(7392, 7813, 28)),
    "matmul 4096 bf16": ("matmul 4096x{}x4096 bf16", 4096, range(4176, 4417, 16)),
    ON_CPU[0]: ("", 8192, range(8400, 8801, 40)),
}
SIZES = {name: size for name, (_, size, _) in _OPERATIONS.items()}
LARGER = {name: larger for name, (_, _, larger) in _OPERATIONS.items()}


def names_on(device: torch.device) -> tuple[str, ...]:
    return tuple(SIZES) if device.type == "cuda" else ON_CPU


def call_of(name: str, device: torch.device, size: int) -> Operation:
    if name not in ON_CPU:
        return operation(_OPERATIONS[name][0].format(size), device)
    # On one thread, a chain of results that each wait for the one before. What has independent work
    # to do takes longer while a neighbour has the core's other thread, by a tenth or a third.
    return functools.partial(torch.logcumsumexp, torch.linspace(-1, 1, size), 0)
