"""Memory that shows what a kernel left unwritten: NaN in every floating-point type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_ALL_ONES = 0xFF
_SMALL = 2**20  # PyTorch cuts what is at most this large from segments of 2 MiB
_ROOM = 2**25  # of a large allocation, for what is rounded up


def poison(device: torch.device, peak_bytes: int) -> None:
    """Fills the memory that the next allocations come from with NaN.

    Args:
        device: A GPU, with its index. What its allocator keeps unused goes back to it first.
        peak_bytes: That are allocated next, at most.
    """
    torch.cuda.empty_cache()
    sizes = [*sorted(_gaps(device)), peak_bytes + _ROOM, _SMALL, _SMALL]
    # Held at the same time, so that each is memory of its own; given back when all are filled.
    blocks = [torch.full((size,), _ALL_ONES, dtype=torch.uint8, device=device) for size in sizes]
    del blocks


def _gaps(device: torch.device) -> Iterator[int]:
    """Bytes between tensors in use, as allocations that fill them.

    Not those that only another stream or a CUDA graph can allocate from: what is meant for them
    would be cut from a larger gap, and leave the rest of it.
    """
    stream = torch.cuda.current_stream(device).cuda_stream
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    for segment in segments:
        place = segment["device"], segment["stream"], segment["segment_pool_id"]
        if place != (device.index, stream, (0, 0)):
            continue
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                continue
            most = _SMALL if segment["segment_type"] == "small" else block["size"]
            for start in range(0, block["size"], most):
                yield min(most, block["size"] - start)
