"""ReLU and max-pooling in one kernel, with the arguments of torch.nn.functional.max_pool2d."""

from __future__ import annotations

from typing import Literal, overload

import torch

from convtime.core.kinds import Numbers
from convtime.core.load import _C as _C  # registers the ops
from convtime.ops.arguments import check_tensors, numbers

_NAME = "relu_max_pool2d"


@overload
def relu_max_pool2d(
    input: torch.Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def relu_max_pool2d(
    input: torch.Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def relu_max_pool2d(
    input: torch.Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


def relu_max_pool2d(
    input: torch.Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """2-D max-pooling of the input's ReLU: ``F.max_pool2d(F.relu(input), ...)`` in one kernel.

    Results are PyTorch's, NaN and infinities included, and the output has the same memory layout as
    in PyTorch. Gradients are deterministic. They need one byte per output, or four bytes if the
    window has more than 128 elements; neither input nor output is kept.

    Args:
        input: shape (N, C, H, W) or (C, H, W); float16, bfloat16, float32 or float64.
        kernel_size: size of the window, one number or (vertical, horizontal), at least 1.
        stride: steps of the window, at least 1; ``kernel_size`` by default.
        padding: rows and columns around the input that are never the maximum, at most half of
            ``kernel_size``.
        dilation: steps between the window's elements, at least 1.
        ceil_mode: whether a window that begins before the end padding may extend beyond it.
        return_indices: whether to also return the index of each maximum in its plane. Among equal
            ones, it is the first, as in PyTorch. All elements up to zero count as equal.

    Returns:
        Shape (N, C, P, Q), or (C, P, Q) for a 3-D input; with int64 indices if requested.

    Raises:
        TypeError: ``input`` is not a tensor, or a number of the window is not a whole number.
        RuntimeError: shapes, dtypes or numbers are invalid or inconsistent.
    """
    check_tensors(_NAME, input=input)
    window = (
        numbers(_NAME, 2, "kernel_size", kernel_size),
        () if stride is None else numbers(_NAME, 2, "stride", stride),
        numbers(_NAME, 2, "padding", padding),
        numbers(_NAME, 2, "dilation", dilation),
        bool(ceil_mode),
    )
    if not return_indices:
        output: torch.Tensor = torch.ops.convtime.relu_max_pool2d(input, *window)
        return output
    output, winners = torch.ops.convtime.relu_max_pool2d_with_winners(input, *window)
    return output, torch.ops.convtime.relu_max_pool2d_indices(winners, input.shape, *window)
