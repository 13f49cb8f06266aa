"""Drop-in modules: PyTorch's layers, computed by convtime's ops."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from convtime import ops

__all__ = ["Conv2d"]


class Conv2d(torch.nn.Conv2d):
    """Drop-in for :class:`torch.nn.Conv2d`: same arguments, parameters and ``state_dict``.

    The convolution is :func:`convtime.ops.conv2d`.

    Attributes:
        policy: How cuDNN's plans are selected, as for that function. None, to follow
            ``torch.backends.cudnn.benchmark``, unless it is set; no part of the ``state_dict``.
    """

    policy: str | None = None

    def _conv_forward(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        padding: ops.Pair | str = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return ops.conv2d(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            policy=self.policy,
        )
