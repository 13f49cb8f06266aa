"""The host's time for a call, and for a layer's call; and what many shapes leave behind."""

from __future__ import annotations

import dataclasses
import itertools
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results
import torch
from common.running import Call

import convtime
from convtime.core.load import _C

_SAMPLES = 300

HOST_CASES = {
    f"host {label}{' bias' if bias else ''}{' grad' if grad else ''}": (dtype, layout, bias, grad)
    for label, dtype, layout in (("fp16 nhwc", "float16", "nhwc"), ("fp32 nchw", "float32", "nchw"))
    for bias in (False, True)
    for grad in (False, True)
}
MODULE_CASES = {key.replace("host", "host of modules", 1): case for key, case in HOST_CASES.items()}
BACKWARD_CASES = {
    key.replace("host", "host backward", 1): case for key, case in HOST_CASES.items() if case[3]
}


@dataclasses.dataclass(frozen=True)
class _Operands:
    """Of 1×64×56×56, 3×3."""

    x: torch.Tensor
    layer: torch.nn.Conv2d

    @classmethod
    def make(cls, case: tuple[str, str, bool, bool], device: torch.device) -> _Operands:
        dtype_name, layout, bias, grad = case
        dtype: Any = getattr(torch, dtype_name)
        memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=bias, device=device, dtype=dtype)
        layer = layer.to(memory_format=memory_format).requires_grad_(grad)
        x = torch.randn(1, 64, 56, 56, device=device, dtype=dtype)
        return cls(x.contiguous(memory_format=memory_format).requires_grad_(grad), layer)

    def function_calls(self) -> dict[str, Call]:
        x, w, b = self.x, self.layer.weight, self.layer.bias
        # cuDNN's own execute of the ready plan, into a tensor that is there.
        arguments = (1, 1), (1, 1), (1, 1), 1
        calls: dict[str, Call] = {
            "F.conv2d": lambda: torch.nn.functional.conv2d(x, w, b, padding=1),
            "convtime": lambda: convtime.ops.conv2d(x, w, b, padding=1),
            "floor": _C.execute_floor(x.detach(), w.detach(), None, *arguments),
        }
        if b is not None:
            calls["floor with bias"] = _C.execute_floor(
                x.detach(), w.detach(), b.detach(), *arguments
            )
        return calls

    def module_calls(self) -> dict[str, Call]:
        theirs, x = self.layer, self.x
        ours = convtime.nn.Conv2d(64, 64, 3, padding=1, bias=theirs.bias is not None)
        ours.weight, ours.bias = theirs.weight, theirs.bias
        return {"nn.Conv2d": lambda: theirs(x), "convtime.nn.Conv2d": lambda: ours(x)}

    def backward_calls(self) -> dict[str, Call]:
        x, w, b = self.x, self.layer.weight, self.layer.bias
        leaves = [x, w, *([] if b is None else [b])]
        outputs = {
            "F.conv2d backward": torch.nn.functional.conv2d(x, w, b, padding=1),
            "convtime backward": convtime.ops.conv2d(x, w, b, padding=1),
        }
        grad_output = torch.ones_like(outputs["convtime backward"])

        def backward_of(output: torch.Tensor) -> Call:
            return lambda: torch.autograd.grad(output, leaves, grad_output, retain_graph=True)

        return {name: backward_of(output) for name, output in outputs.items()}


def measure_host(
    case: tuple[str, str, bool, bool], device: torch.device, *, what: str = "function"
) -> results.Row:
    """Samples of the host's time, in nanoseconds, of a "function", a "module" or "backward"."""
    # Two sets by turns: for one whose addresses stay, what was told to cuDNN last is right already.
    sets = [getattr(_Operands.make(case, device), f"{what}_calls")() for _ in range(2)]
    calls = {name: _by_turns([calls[name] for calls in sets]) for name in sets[0]}
    compared = convtime.compare(
        calls,
        method="cpu",
        check=None,
        interference=False,
        cache="warm",
        placement="as-is",
        warmup=100,
        stop="count",
        min_samples=_SAMPLES,
        max_samples=_SAMPLES,
        budget=30.0,
    )
    row: results.Row = {
        "host": {
            name: [round(1e9 * seconds) for seconds in measurement.seconds]
            for name, measurement in compared.measurements.items()
        }
    }
    if what == "module":
        found = compared.ratio("convtime.nn.Conv2d")
        row["ratio"] = [found.value, found.low, found.high]
    return row


def _by_turns(calls: Sequence[Call]) -> Call:
    following = itertools.cycle(calls).__next__
    return lambda: following()()


_SHAPES = 12_000  # more than the 10,000 plans that are kept
_STEP = 2_000


def measure_memory(
    device: torch.device, deadline: float, shapes: int = _SHAPES
) -> results.Row | None:
    """What is left behind by many shapes: the process's memory on the host, and plans kept.

    None where time.monotonic() comes to the deadline before all shapes have had their turn.
    """
    memory = []
    w = torch.randn(8, 8, 1, 1, device=device, dtype=torch.float16)
    for index in range(shapes):
        if index % _STEP == 0:
            memory.append(_memory_now(index))
        if time.monotonic() > deadline:
            print(f"note: memory: there was time for {index} shapes only, so it is not recorded")
            return None
        x = torch.empty(1, 8, 1 + index // 128, 1 + index % 128, device=device, dtype=w.dtype)
        convtime.ops.conv2d(x, w)
    memory.append(_memory_now(shapes))
    return {"memory": memory}


def _memory_now(shapes: int) -> results.Row:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "shapes": shapes,
        "host_bytes": pages * resource.getpagesize(),
        "device_bytes": torch.cuda.memory_allocated(),
        "plans": len(convtime.plan_cache()),
    }
