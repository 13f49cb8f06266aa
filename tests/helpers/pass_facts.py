"""Facts of a layer's pass, by hand."""

from __future__ import annotations

from convtime.upgrading.causes import PassFacts

FACTS = PassFacts(
    module="Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))",
    dtype="float32",
    sizes="2×3×8×8",
    layout="contiguous",
    backend="Mkldnn",
    plan="",
    kernels=("aten::mkldnn_convolution",),
    bits="0123",
    error=1e-7,
    memory_bytes=None,
    first_call_seconds=0.01,
)
SETTINGS = {"torch": "2.11.0", "threads": "2", "flag cudnn.allow_tf32": "True"}
