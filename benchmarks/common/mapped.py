"""Memory of the host that kernels read as they run."""

from __future__ import annotations

import torch


class _Mapped:
    """Pinned numbers of the host, float32, as memory that the GPU can read."""

    def __init__(self, pinned: torch.Tensor) -> None:
        self._kept = pinned  # for as long as the GPU's tensor is there, which holds this object
        self.__cuda_array_interface__ = {
            "shape": tuple(pinned.shape),
            "typestr": "<f4",
            "data": (pinned.data_ptr(), False),
            "version": 3,
        }


def mapped(pinned: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A tensor of the GPU that lies where a pinned one of the host does; float32.

    Raises:
        RuntimeError: PyTorch copied it.
    """
    seen = torch.as_tensor(_Mapped(pinned), device=device)
    if seen.data_ptr() != pinned.data_ptr():
        raise RuntimeError("PyTorch copied what it was to see mapped")
    return seen
