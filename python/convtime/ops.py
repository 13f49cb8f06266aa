"""The ops as functions, and what torch.compile needs to know about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch.nn import functional as F

from convtime._load import _C as _C  # registers torch.ops.convtime

Pair = int | Sequence[int]

_COPY_BLOCK_BYTES = 32_768  # that a block of copy_stamped copies

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    that PyTorch runs. Gradients are PyTorch's own, to any order of backward differentiation;
    PyTorch refuses forward-mode differentiation and torch.func's grad for C++ ops like this one.

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
    for name, tensor in (("input", input), ("weight", weight)):
        if not isinstance(tensor, torch.Tensor):
            raise RuntimeError(f"conv2d: {name} must be a tensor, got {type(tensor).__name__}")
    stride, dilation = _numbers("stride", stride), _numbers("dilation", dilation)
    if isinstance(padding, str):
        input, padding = _resolve_padding(input, weight, stride, padding, dilation)
    output: torch.Tensor = torch.ops.convtime.conv2d(
        input, weight, bias, stride, _numbers("padding", padding), dilation, groups
    )
    return output


def _numbers(name: str, value: object) -> Sequence[int]:
    values = tuple(value) if isinstance(value, Sequence) else (value, value)
    for number in values:
        if not isinstance(number, int | torch.SymInt | SupportsIndex):
            raise RuntimeError(f"conv2d: {name} must be one or two whole numbers, got {value!r}")
    return values


def _resolve_padding(
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: str,
    dilation: Sequence[int],
) -> tuple[torch.Tensor, Pair]:
    """Turns "same" and "valid" into numbers as ATen's conv2d.padding does.

    Where the padding has to be uneven, the surplus zeros are put at the end of the input first.
    """
    if padding == "valid" or weight.dim() != 4 or not dilation:
        return input, 0  # the op refuses the latter two
    if padding != "same":
        raise RuntimeError(f"conv2d: padding must be a number, 'same' or 'valid', got {padding!r}")
    if any(step != 1 for step in stride):
        raise RuntimeError(f"conv2d: padding 'same' needs a stride of 1, got {stride}")
    totals = [dilation[0] * (weight.shape[2] - 1), dilation[-1] * (weight.shape[3] - 1)]
    surplus_vertical, surplus_horizontal = (total % 2 for total in totals)
    if surplus_vertical or surplus_horizontal:
        input = F.pad(input, (0, surplus_horizontal, 0, surplus_vertical))
    return input, [total // 2 for total in totals]


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
    # What PyTorch's own fake lets through and the op refuses.
    torch._check(input.dtype in DTYPES, lambda: f"conv2d: dtype must be in {DTYPES}")
    torch._check(input.device == weight.device, lambda: "conv2d: tensors on different devices")
    for size in (*weight.shape[2:], *dilation):
        torch._check(size >= 1, lambda: "conv2d: kernel size and dilation must be at least 1")
    # PyTorch's own op has the same result, shape, strides and all.
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)


@torch.library.register_fake("convtime::spin_ns")  # type: ignore[untyped-decorator]
def _spin_ns_fake(nanoseconds: int, blocks: int = 1, threads: int = 1) -> torch.Tensor:  # noqa: ARG001
    return torch.empty((blocks, 2), dtype=torch.int64, device="cuda")


@torch.library.register_fake("convtime::sleep_cycles")  # type: ignore[untyped-decorator]
def _sleep_cycles_fake(cycles: int) -> None:
    pass


@torch.library.register_fake("convtime::flush_l2")  # type: ignore[untyped-decorator]
def _flush_l2_fake() -> None:
    pass


@torch.library.register_fake("convtime::read_clocks")  # type: ignore[untyped-decorator]
def _read_clocks_fake() -> torch.Tensor:
    return torch.empty(3, dtype=torch.int64, device="cuda")


@torch.library.register_fake("convtime::copy_stamped")  # type: ignore[untyped-decorator]
def _copy_stamped_fake(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-input.nbytes // _COPY_BLOCK_BYTES)
    return torch.empty_like(input), input.new_empty((blocks, 2), dtype=torch.int64)
