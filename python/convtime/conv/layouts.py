"""dtypes and memory formats by their user-facing names."""

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
    """Return the memory format of a layout, a member of LAYOUTS, for this number of dimensions.

    For three dimensions PyTorch has no channels_last, so both layouts are contiguous.
    """
    contiguous = torch.contiguous_format
    return _CHANNELS_LAST.get(dimensions, contiguous) if layout == "nhwc" else contiguous
