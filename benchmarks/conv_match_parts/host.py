"""The host's time for a call, and for a layer's call."""

from __future__ import annotations

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


def measure_host(
    case: tuple[str, str, bool, bool], device: torch.device, *, modules: bool
) -> results.Row:
    """Samples of the host's time for one call of 1×64×56×56, 3×3, in nanoseconds."""
    dtype_name, layout, bias, grad = case
    dtype: Any = getattr(torch, dtype_name)
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    theirs = torch.nn.Conv2d(64, 64, 3, padding=1, bias=bias, device=device, dtype=dtype)
    theirs = theirs.to(memory_format=memory_format).requires_grad_(grad)
    x = torch.randn(1, 64, 56, 56, device=device, dtype=dtype)
    x = x.contiguous(memory_format=memory_format).requires_grad_(grad)
    calls: dict[str, Call]
    if modules:
        ours = convtime.nn.Conv2d(64, 64, 3, padding=1, bias=bias, device=device, dtype=dtype)
        ours.weight, ours.bias = theirs.weight, theirs.bias
        calls = {"nn.Conv2d": lambda: theirs(x), "convtime.nn.Conv2d": lambda: ours(x)}
    else:
        w, b = theirs.weight, theirs.bias
        calls = {
            "F.conv2d": lambda: torch.nn.functional.conv2d(x, w, b, padding=1),
            "convtime": lambda: convtime.ops.conv2d(x, w, b, padding=1),
            # cuDNN's own execute of the ready plan, into a tensor that is there.
            "floor": _C.execute_floor(x.detach(), w.detach(), (1, 1), (1, 1), (1, 1), 1),
        }
    compared = convtime.compare(
        calls,
        method="cpu",
        cache="warm",
        warmup=100,
        stop="count",
        min_samples=_SAMPLES,
        max_samples=_SAMPLES,
        budget=30.0,
    )
    host = {
        name: [round(1e9 * seconds) for seconds in measurement.seconds]
        for name, measurement in compared.measurements.items()
    }
    if modules:
        found = compared.ratio("convtime.nn.Conv2d")
        return {"host": host, "ratio": [found.value, found.low, found.high]}
    return {"host": host}
