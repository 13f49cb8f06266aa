"""The operations that the gate watches, each on as much data as it is told."""

import functools

import torch
from torch.nn import functional as F

Call = functools.partial[torch.Tensor]  # with all of its arguments
ON_CPU = ("logcumsumexp 8192 on the CPU",)
#: Rows, inner dimension (a matmul's tiles leave only that one to grow evenly) or elements; and
#: larger amounts, among which is one that takes 5 % longer.
_SIZES = {
    "relu 1Mi": (1024, range(1054, 1175, 10)),
    "layer_norm 8192x768": (8192, range(8442, 9043, 50)),
    "conv 1x64x7168x56 fp16 nhwc": (7168, range(7392, 7813, 28)),
    "matmul 4096 bf16": (4096, range(4176, 4417, 16)),
    ON_CPU[0]: (8192, range(8400, 8801, 40)),
}
SIZES = {name: size for name, (size, _) in _SIZES.items()}
LARGER = {name: larger for name, (_, larger) in _SIZES.items()}


def names_on(device: torch.device) -> tuple[str, ...]:
    return tuple(SIZES) if device.type == "cuda" else ON_CPU


def call_of(name: str, device: torch.device, size: int) -> Call:
    randn = functools.partial(torch.randn, device=device)
    match name.split()[0]:
        case "relu":
            return functools.partial(torch.relu, randn(size, 1024))
        case "layer_norm":
            return functools.partial(F.layer_norm, randn(size, 768), (768,))
        case "conv":  # of one high image, which can grow by less than one of many images
            x, weight = (
                randn(shape, dtype=torch.float16).to(memory_format=torch.channels_last)
                for shape in ((1, 64, size, 56), (64, 64, 3, 3))
            )
            return functools.partial(F.conv2d, x, weight, padding=1)
        case "matmul":
            shapes = ((4096, size), (size, 4096))
            return functools.partial(
                torch.mm, *(randn(each, dtype=torch.bfloat16) for each in shapes)
            )
    # On one thread, a chain of results that each wait for the one before. What has independent work
    # to do takes longer while a neighbour has the core's other thread, by a tenth or a third.
    return functools.partial(torch.logcumsumexp, torch.linspace(-1, 1, size), 0)
