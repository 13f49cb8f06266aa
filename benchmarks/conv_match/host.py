"""The host's time for a call, and for a layer's call; and what many shapes leave behind."""

import itertools
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results
import torch
from common.running import PLAIN, Call, counted

import convtime
from convtime.core.load import _C

_SAMPLES = 300

Case = tuple[str, str, bool, bool]  # dtype, layout, with a bias, with gradients

_CASES: dict[str, Case] = {
    f"{label}{' bias' if bias else ''}{' grad' if grad else ''}": (dtype, layout, bias, grad)
    for label, dtype, layout in (("fp16 nhwc", "float16", "nhwc"), ("fp32 nchw", "float32", "nchw"))
    for bias in (False, True)
    for grad in (False, True)
}
_KINDS = {"host": "function", "host of modules": "module", "host backward": "backward"}
HOST_CASES = {
    f"{prefix} {key}": (what, case)
    for prefix, what in _KINDS.items()
    for key, case in _CASES.items()
    if what != "backward" or case[3]
}


def _calls(what: str, case: Case, device: torch.device) -> dict[str, Call]:
    dtype_name, layout, bias, grad = case
    dtype: Any = getattr(torch, dtype_name)
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=bias, device=device, dtype=dtype)
    layer = layer.to(memory_format=memory_format).requires_grad_(grad)
    x = torch.randn(1, 64, 56, 56, device=device, dtype=dtype)
    x = x.contiguous(memory_format=memory_format).requires_grad_(grad)
    w, b = layer.weight, layer.bias
    if what == "module":
        ours = convtime.nn.Conv2d(64, 64, 3, padding=1, bias=bias)
        ours.weight, ours.bias = w, b
        return {"nn.Conv2d": lambda: layer(x), "convtime.nn.Conv2d": lambda: ours(x)}
    calls: dict[str, Call] = {
        "F.conv2d": lambda: torch.nn.functional.conv2d(x, w, b, padding=1),
        "convtime": lambda: convtime.ops.conv2d(x, w, b, padding=1),
    }
    if what == "backward":
        leaves = [x, w, *([] if b is None else [b])]
        outputs: dict[str, Any] = {f"{name} backward": call() for name, call in calls.items()}
        grad_output = torch.ones_like(outputs["convtime backward"])

        def backward_of(output: torch.Tensor) -> Call:
            return lambda: torch.autograd.grad(output, leaves, grad_output, retain_graph=True)

        return {name: backward_of(output) for name, output in outputs.items()}
    # cuDNN's own execute of the ready plan, into a tensor that is there.
    biases = {"floor": None} | ({} if b is None else {"floor with bias": b.detach()})
    return calls | {
        name: _C.execute_floor(x.detach(), w.detach(), bias, (1, 1), (1, 1), (1, 1), 1)
        for name, bias in biases.items()
    }


def measure_host(what: str, case: Case, device: torch.device) -> results.Row:
    # Two sets by turns: for one whose addresses stay, what was told to cuDNN last is right already.
    sets = [_calls(what, case, device) for _ in range(2)]
    calls = {name: _by_turns([calls[name] for calls in sets]) for name in sets[0]}
    options = {**PLAIN, **counted(_SAMPLES), "cache": "warm", "placement": "as-is"}
    compared = convtime.compare(calls, method="cpu", warmup=100, budget=30.0, **options)
    return {
        "host": {
            name: [round(1e9 * seconds) for seconds in measurement.seconds]
            for name, measurement in compared.measurements.items()
        }
    }


def _by_turns(calls: Sequence[Call]) -> Call:
    following = itertools.cycle(calls).__next__
    return lambda: following()()


_SHAPES = 12_000  # more than the 10,000 plans that are kept
_STEP = 2_000


def measure_memory(device: torch.device) -> results.Row:
    memory = []
    w = torch.randn(8, 8, 1, 1, device=device, dtype=torch.float16)
    for index in range(_SHAPES):
        if index % _STEP == 0:
            memory.append(_memory_now(index))
        x = torch.empty(1, 8, 1 + index // 128, 1 + index % 128, device=device, dtype=w.dtype)
        convtime.ops.conv2d(x, w)
    memory.append(_memory_now(_SHAPES))
    return {"memory": memory}


def _memory_now(shapes: int) -> results.Row:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "shapes": shapes,
        "host_bytes": pages * resource.getpagesize(),
        "plans": len(convtime.conv.plan_cache()),
    }
