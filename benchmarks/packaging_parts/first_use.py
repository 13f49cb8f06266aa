"""What the first use of kernels costs in a process, by an empty cache and by a filled one."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable

import results
import torch
from common import running
from torch import nn

from packaging_parts.uses import TIME_OP

BATCH = 32


def measure(use: str, device: torch.device) -> results.Row:
    """The seconds of the first call in a process that has no compiled kernels, and in the next."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        try:
            empty, filled = (_probe(use, device) for _ in range(2))
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before
    row = {f"empty_{name}": value for name, value in empty.items()}
    return row | {f"filled_{name}": value for name, value in filled.items()}


def _probe(use: str, device: torch.device) -> results.Row:
    script = str(results.scripts()["packaging"])
    command = [script, "--part", "kernels", "--probe", use, "--device", str(device)]
    row: results.Row = running.run_fresh(command)
    return row


def probe(device: torch.device, use: str) -> results.Row:
    """The first call in this process, in which PyTorch and its libraries are warm."""
    from convtime.core.load import _C

    image = torch.randn(BATCH, 64, 56, 56, device=device, dtype=torch.float16)
    layer = nn.Conv2d(64, 64, 3, padding=1, device=device, dtype=torch.float16)
    rows = torch.randn(4096, 256, device=device, dtype=torch.float16, requires_grad=True)
    linear = torch.nn.functional.linear
    for _ in range(2):  # loads cuDNN, cuBLAS, and what a process's first backward pass imports
        for result in (torch.relu(layer(image)), linear(rows, rows[:256], rows[0])):
            torch.autograd.backward(result, torch.ones_like(result))
    call = uses(image, layer)[use]()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    cache = _C.kernel_cache()
    return {
        "first_s": seconds,
        "second_s": time.perf_counter() - begin,
        "programs": None if cache is None else cache["files"],
    }


def uses(image: torch.Tensor, layer: nn.Conv2d) -> dict[str, Callable[[], Callable[[], object]]]:
    """What makes a call that needs kernels of convtime's own, by name."""
    import convtime

    def backward() -> Callable[[], object]:
        # Its forward pass is another kernel, which is not counted.
        leaf = image.clone().requires_grad_()
        pooled = convtime.ops.relu_max_pool2d(leaf, 3, 2, 1)
        gradient = torch.ones_like(pooled)
        return lambda: torch.autograd.grad(pooled, leaf, gradient, retain_graph=True)

    def training(width: int) -> Callable[[], object]:
        widths = [width] * 5
        net = convtime.nn.FusedMLP(widths, device=image.device)
        data = torch.randn(1 << 14, width, device=image.device, dtype=torch.float16)
        trainer = convtime.nn.MLPTrainer(net, data, data, batch_size=4096, tune=False)
        return trainer.step

    def inference(width: int) -> Callable[[], object]:
        net = convtime.nn.FusedMLP([width] * 5, device=image.device)
        data = torch.randn(4096, width, device=image.device, dtype=torch.float16)
        return functools.partial(net, data)

    pool = functools.partial(convtime.ops.relu_max_pool2d, kernel_size=3, stride=2, padding=1)
    last = image.to(memory_format=torch.channels_last)
    epilogue = functools.partial(
        convtime.ops.conv2d_epilogue,
        weight=layer.weight.detach(),
        bias=layer.bias.detach() if layer.bias is not None else None,
        padding=1,
        activation="gelu",  # which cuDNN does not fuse
    )
    return {
        TIME_OP: lambda: functools.partial(convtime.time_op, torch.relu, image),
        "pool": lambda: functools.partial(pool, image),
        "pool channels_last": lambda: functools.partial(pool, last),
        "pool backward": backward,
        "epilogue": lambda: functools.partial(epilogue, image),
        "mlp 64 inference": lambda: inference(64),
        "mlp 64 training": lambda: training(64),
        "mlp 128 training": lambda: training(128),
        "mlp 256 training": lambda: training(256),
    }
