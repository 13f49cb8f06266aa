"""dtypes and memory formats by the names that users give them."""

from __future__ import annotations

import torch

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
LAYOUTS = ("nchw", "nhwc")
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(layout: str, dimensions: int) -> torch.memory_format:
    """That of a layout, a member of LAYOUTS, for tensors of so many dimensions.

    Where PyTorch has no channels_last, with three of them, both layouts are contiguous.
    """
    contiguous = torch.contiguous_format
    return _CHANNELS_LAST.get(dimensions, contiguous) if layout == "nhwc" else contiguous
