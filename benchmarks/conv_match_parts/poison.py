"""Memory that shows what a kernel left unwritten: NaN in every floating-point type."""

from __future__ import annotations

import torch

_ALL_ONES = 0xFF
_SMALL_BLOCKS = (2**20, 2**20)  # PyTorch cuts what is at most this large from blocks of 2 MiB
_ROOM = 2**25  # of a large allocation, for what is rounded up


def poison(device: torch.device, peak_bytes: int) -> None:
    """Fills the memory that the next allocations come from with NaN.

    Args:
        device: A GPU, with its index. What its allocator keeps unused goes back to it first.
        peak_bytes: That are allocated next, at most.
    """
    torch.cuda.empty_cache()
    gaps = sorted(
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if segment["device"] == device.index and block["state"] == "inactive"
    )
    # Held at the same time, so that each is memory of its own; given back when all are filled. What
    # lies between tensors in use is asked for by its exact size, and first.
    blocks = [
        torch.full((size,), _ALL_ONES, dtype=torch.uint8, device=device)
        for size in (*gaps, peak_bytes + _ROOM, *_SMALL_BLOCKS)
    ]
    del blocks
