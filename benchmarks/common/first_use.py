"""What the first use of kernels costs in a process, by an empty cache and by a filled one."""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import results
import torch
from torch import nn

import convtime
from common import running

BATCH = 32


def measure(use: str, device: torch.device) -> results.Row:
    """The seconds of the first call in a process that has no compiled kernels, and in the next."""
    row: results.Row = {}
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache}),
    ):
        for state in ("empty", "filled"):
            found = running.run_fresh(probe, device, use)
            row |= {f"{state}_{name}": value for name, value in found.items()}
    return row


def probe(device: torch.device, use: str) -> results.Row:
    """The first call in this process, in which PyTorch and its libraries are warm."""
    image = torch.randn(BATCH, 64, 56, 56, device=device, dtype=torch.float16)
    layer = nn.Conv2d(64, 64, 3, padding=1, device=device, dtype=torch.float16)
    rows = torch.randn(4096, 256, device=device, dtype=torch.float16, requires_grad=True)
    for _ in range(2):  # loads cuDNN, cuBLAS, and what a process's first backward pass imports
        for result in (torch.relu(layer(image)), nn.functional.linear(rows, rows[:256], rows[0])):
            torch.autograd.backward(result, torch.ones_like(result))
    call = uses(image, layer)[use]()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return dict(zip(("first_s", "second_s"), seconds, strict=True))


def uses(image: torch.Tensor, layer: nn.Conv2d) -> dict[str, Callable[[], Callable[[], object]]]:
    def backward() -> Callable[[], object]:
        # Its forward pass is another kernel, which is not counted.
        leaf = image.clone().requires_grad_()
        pooled = convtime.ops.relu_max_pool2d(leaf, 3, 2, 1)
        gradient = torch.ones_like(pooled)
        return lambda: torch.autograd.grad(pooled, leaf, gradient, retain_graph=True)

    def training(width: int) -> Callable[[], object]:
        net, data = mlp(width, 1 << 14)
        return convtime.nn.MLPTrainer(net, data, data, batch_size=4096, tune=False).step

    def inference(width: int) -> Callable[[], object]:
        net, data = mlp(width, 4096)
        return partial(net, data)

    def mlp(width: int, count: int) -> tuple[convtime.nn.FusedMLP, torch.Tensor]:
        net = convtime.nn.FusedMLP([width] * 5, device=image.device)
        return net, torch.randn(count, width, device=image.device, dtype=torch.float16)

    pool = partial(convtime.ops.relu_max_pool2d, kernel_size=3, stride=2, padding=1)
    last = image.to(memory_format=torch.channels_last)
    epilogue = partial(
        convtime.ops.conv2d_epilogue,
        weight=layer.weight.detach(),
        bias=layer.bias.detach() if layer.bias is not None else None,
        padding=1,
        activation="gelu",  # which cuDNN does not fuse
    )
    return {
        "time_op": lambda: partial(convtime.time_op, torch.relu, image),
        "pool": lambda: partial(pool, image),
        "pool channels_last": lambda: partial(pool, last),
        "pool backward": backward,
        "epilogue": lambda: partial(epilogue, image),
        "mlp 64 inference": partial(inference, 64),
        **{f"mlp {width} training": partial(training, width) for width in (64, 128, 256)},
    }
