"""PyTorch's operations that benchmarks time, with their data."""

import functools

import torch
from torch.nn import functional as F

from common.running import Call


class Operations:
    """Makes calls of operations on random data: on zeros a matmul is 13 % faster."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=self._device, dtype=dtype)

    def relu(self, *shape: int) -> Call:
        return functools.partial(torch.relu, self.rand(*shape))

    def add(self, count: int) -> Call:
        return functools.partial(torch.add, self.rand(count), self.rand(count))

    def sum(self, count: int) -> Call:
        return functools.partial(torch.sum, self.rand(count))

    def softmax(self, side: int, dtype: torch.dtype = torch.float32) -> Call:
        return functools.partial(torch.softmax, self.rand(side, side, dtype=dtype), 1)

    def matmul(self, side: int) -> Call:
        a, b = (self.rand(side, side, dtype=torch.bfloat16) for _ in range(2))
        return functools.partial(torch.mm, a, b)

    def conv(
        self,
        batch: int,
        channels: int = 64,
        dtype: torch.dtype = torch.float16,
        layout: torch.memory_format = torch.channels_last,
    ) -> Call:
        """A 3×3 convolution of 56×56 images with as many channels before as after it."""
        x, weight = (
            self.rand(*shape, dtype=dtype).to(memory_format=layout)
            for shape in ((batch, channels, 56, 56), (channels, channels, 3, 3))
        )
        return functools.partial(F.conv2d, x, weight, padding=1)


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
    """A tensor of the GPU that lies where a pinned one of the host does; float32."""
    seen = torch.as_tensor(_Mapped(pinned), device=device)
    if seen.data_ptr() != pinned.data_ptr():
        raise RuntimeError("PyTorch copied what it was to see mapped")
    return seen
