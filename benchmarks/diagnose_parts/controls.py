"""The controls: calls about which there is nothing to be named."""

from __future__ import annotations

import functools

import torch
from common.planting import NOTHING, Draw, Plant, Planted, Plants
from torch.nn import functional as F

from diagnose_parts.causes import MIB, new_stream, random_tensor


def relu(draw: Draw) -> Planted:
    return Planted(torch.relu, (random_tensor(draw.whole("Mi numbers", 64, 192) * MIB),))


def add(draw: Draw) -> Planted:
    size = draw.whole("Mi numbers", 64, 128) * MIB
    return Planted(torch.add, (random_tensor(size), random_tensor(size)))


def softmax(draw: Draw) -> Planted:
    rows = 1024 * draw.whole("1024 rows", 16, 32)
    return Planted(torch.softmax, (random_tensor(rows, 4096), 1))


def layer_norm(draw: Draw) -> Planted:
    x = random_tensor(1024 * draw.whole("1024 rows", 16, 48), 4096, dtype="bfloat16")
    return Planted(functools.partial(F.layer_norm, normalized_shape=(4096,)), (x,))


def reduction(draw: Draw) -> Planted:
    return Planted(torch.sum, (random_tensor(draw.whole("Mi numbers", 96, 256) * MIB),))


def gather(draw: Draw) -> Planted:
    """Of whole rows, from a table that no cache holds."""
    rows = draw.whole("Ki rows", 512, 1024) * 1024
    table = random_tensor(rows, 256)
    index = torch.randint(0, rows, (256 * 1024,), device="cuda")
    return Planted(torch.index_select, (table, 0, index))


def overlapped(draw: Draw) -> Planted:
    """A copy that is shorter than the work that it runs beside."""
    host = torch.randn(draw.whole("MiB", 1, 2) * MIB // 4).pin_memory()
    landed, side = torch.empty_like(host, device="cuda"), new_stream()
    x = random_tensor(draw.whole("Mi numbers", 128, 192) * MIB)

    def call() -> torch.Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            landed.copy_(host, non_blocking=True)
        y = torch.relu(x)
        main.wait_stream(side)
        return y

    return Planted(call)


def waited(draw: Draw) -> Planted:
    """Two streams, each of which waits for what it reads."""
    x, side = random_tensor(draw.whole("Mi numbers", 64, 128) * MIB), new_stream()

    def call() -> torch.Tensor:
        main = torch.cuda.current_stream()
        y = torch.relu(x)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            z = y * 2.0
        main.wait_stream(side)
        return z + 1.0

    return Planted(call)


CONTROLS: Plants = {
    f"control: {name}": Plant(NOTHING, make)
    for name, make in {
        "relu": relu,
        "add": add,
        "softmax": softmax,
        "layer_norm": layer_norm,
        "sum": reduction,
        "gather": gather,
        "overlapped copy": overlapped,
        "two streams": waited,
    }.items()
}
