"""The ops as functions, and what torch.compile needs to know about them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from convtime._load import _C as _C  # registers torch.ops.convtime

Pair = int | Sequence[int]


def conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> torch.Tensor:
    """2-D convolution with the arguments of :func:`torch.nn.functional.conv2d`.

    On a GPU, where PyTorch would use cuDNN, the call is convtime's own: a cuDNN plan selected as
    PyTorch selects with ``torch.backends.cudnn.benchmark`` off. Everywhere else it runs the kernels
    that PyTorch runs. Gradients are PyTorch's own.

    Args:
        input: shape (N, C, H, W) or (C, H, W); float16, bfloat16, float32 or float64.
        weight: shape (K, C / groups, R, S), same dtype and device as ``input``.
        bias: shape (K,), or None.
        stride: steps, one number or (vertical, horizontal), at least 1.
        padding: zeros added on both sides, one number or (vertical, horizontal); or ``"valid"``
            (none), or ``"same"`` (as many as keep the size; needs a stride of 1).
        dilation: steps between the kernel's elements, at least 1.
        groups: number of groups, divides C and K.

    Returns:
        Shape (N, K, P, Q), or (K, P, Q) for a 3-D input.

    Raises:
        RuntimeError: for shapes, dtypes, devices or numbers that do not fit together.
    """
    if isinstance(padding, str):
        input, padding = _resolve_padding(input, weight, stride, padding, dilation)
    output: torch.Tensor = torch.ops.convtime.conv2d(
        input, weight, bias, _sequence(stride), _sequence(padding), _sequence(dilation), groups
    )
    return output


def _resolve_padding(
    input: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: str, dilation: Pair
) -> tuple[torch.Tensor, Pair]:
    """Turns "same" and "valid" into numbers as ATen's conv2d.padding does.

    Where the padding has to be uneven, the surplus zeros are put at the end of the input first.
    """
    if padding == "valid":
        return input, 0
    if padding != "same":
        raise RuntimeError(f"conv2d: padding must be a number, 'same' or 'valid', got {padding!r}")
    if any(step != 1 for step in _sequence(stride)):
        raise RuntimeError(f"conv2d: padding 'same' needs a stride of 1, got {stride}")
    steps = _sequence(dilation)
    totals = [steps[0] * (weight.shape[-2] - 1), steps[-1] * (weight.shape[-1] - 1)]
    surplus_vertical, surplus_horizontal = (total % 2 for total in totals)
    if surplus_vertical or surplus_horizontal:
        input = F.pad(input, (0, surplus_horizontal, 0, surplus_vertical))
    return input, [total // 2 for total in totals]


def _sequence(value: Pair) -> Sequence[int]:
    return (value, value) if isinstance(value, int) else value


@torch.library.register_fake("convtime::conv2d")  # type: ignore[untyped-decorator]
def _conv2d_fake(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> torch.Tensor:
    # PyTorch's own op has the same result, shape, strides and all.
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
