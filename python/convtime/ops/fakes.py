"""The fake implementations of the ops for torch.compile: shapes, strides and errors.

All are in one module, which csrc/ops names to torch as their location.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from convtime.core.kinds import KINDS, ConvolutionKind, kind_of
from convtime.core.load import _C as _C  # registers the ops
from convtime.ops.arguments import DTYPES

_COPY_BLOCK_BYTES = 32_768  # bytes per block of copy_stamped
_MOST_BYTE_WINNERS = 128  # largest window, in elements, whose winners are stored as bytes


def _register_fake(kind: ConvolutionKind) -> None:
    pytorchs = getattr(F, kind.function)  # its result has the same shape and strides

    def fake(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *numbers: Any,  # without the last ones, if they have their defaults
        policy: str | None = None,  # noqa: ARG001
    ) -> torch.Tensor:
        given = dict(zip(kind.numbers, numbers, strict=False))
        ones = (1,) * kind.rank
        _check(
            kind.function,
            input,
            weight,
            given.get("stride", ones),
            given.get("dilation", ones),
            given.get("output_padding", ()),
        )
        output: torch.Tensor = pytorchs(input, weight, bias, *numbers)
        return output

    torch.library.register_fake(f"convtime::{kind.function}", fake)


for _kind in KINDS:
    _register_fake(_kind)


@torch.library.register_fake("convtime::convolution_backward")  # type: ignore[untyped-decorator]
def _convolution_backward_fake(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    *,
    policy: str | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    _check(
        "convolution_backward",
        input,
        weight,
        stride,
        dilation,
        output_padding if transposed else (),
    )
    gradients: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
    gradients = torch.ops.aten.convolution_backward(
        grad_output,
        input,
        weight,
        [weight.shape[1] * groups if transposed else weight.shape[0]],
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )
    return gradients


@torch.library.register_fake("convtime::convolution_epilogue")  # type: ignore[untyped-decorator]
def _convolution_epilogue_fake(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    other: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_activation: object,
    policy: str | None = None,  # noqa: ARG001
) -> torch.Tensor:
    name = "convolution_epilogue"
    torch._check(weight.dim() in (3, 4, 5), lambda: f"{name}: weight must have 3 to 5 dimensions")
    _check(name, input, weight, stride, dilation)
    pytorchs = getattr(F, kind_of(weight.dim() - 2, transposed=False).function)
    output: torch.Tensor = pytorchs(input, weight, bias, stride, padding, dilation, groups)
    if other is not None:
        torch._check(
            other.dtype == input.dtype and other.device == input.device,
            lambda: f"{name}: other must have the input's dtype and device",
        )
        torch._check(other.dim() == output.dim(), lambda: f"{name}: other must have output's shape")
        for size, expected in zip(other.shape, output.shape, strict=True):
            torch._check(size == expected, lambda: f"{name}: other must have the output's shape")
    return output


def _check(
    op: str,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int] = (),
) -> None:
    """Reject arguments that the op rejects but PyTorch's own fakes accept."""
    torch._check(input.device == weight.device, lambda: f"{op}: tensors on different devices")
    torch._check(input.dtype == weight.dtype, lambda: f"{op}: tensors of different dtypes")
    torch._check_not_implemented(input.dtype in DTYPES, lambda: f"{op}: dtype must be in {DTYPES}")
    for size in (*weight.shape[2:], *dilation):
        torch._check(size >= 1, lambda: f"{op}: kernel size and dilation must be at least 1")
    # The op and PyTorch accept any output_padding for an empty batch. Comparing a symbolic batch
    # size would specialize compiled code to nonempty batches.
    batch = input.shape[0] if input.dim() == weight.dim() else 1
    if isinstance(batch, int) and batch == 0:
        return
    for extra, step, gap in zip(output_padding, stride, dilation, strict=False):
        torch._check(
            extra < max(step, gap),
            lambda: f"{op}: output_padding must be smaller than stride or dilation",
        )


@torch.library.register_fake("convtime::relu_max_pool2d")  # type: ignore[untyped-decorator]
def _relu_max_pool2d_fake(
    input: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> torch.Tensor:
    torch._check(input.dtype in DTYPES, lambda: f"relu_max_pool2d: dtype must be in {DTYPES}")
    torch._check(
        input.dim() in (3, 4), lambda: "relu_max_pool2d: input must have 3 or 4 dimensions"
    )
    for number in (*kernel_size, *stride):
        torch._check(
            number >= 1, lambda: "relu_max_pool2d: kernel_size and stride must be at least 1"
        )
    # With PyTorch's shape, strides and errors.
    output: torch.Tensor = torch.ops.aten.max_pool2d_with_indices(
        input, kernel_size, stride, padding, dilation, ceil_mode
    )[0]
    return output


@torch.library.register_fake(  # type: ignore[untyped-decorator]
    "convtime::relu_max_pool2d_with_winners"
)
def _relu_max_pool2d_with_winners_fake(
    input: torch.Tensor, kernel_size: Sequence[int], *window: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    output = _relu_max_pool2d_fake(input, kernel_size, *window)
    elements = kernel_size[0] * kernel_size[-1]
    dtype = torch.uint8 if elements <= _MOST_BYTE_WINNERS else torch.uint32
    return output, torch.empty_like(output, dtype=dtype)


@torch.library.register_fake("convtime::relu_max_pool2d_backward")  # type: ignore[untyped-decorator]
def _relu_max_pool2d_backward_fake(
    grad_output: torch.Tensor, winners: torch.Tensor, input_size: Sequence[int], *_window: object
) -> torch.Tensor:
    return grad_output.new_empty(input_size).to(memory_format=_pool_format(winners))


@torch.library.register_fake("convtime::relu_max_pool2d_indices")  # type: ignore[untyped-decorator]
def _relu_max_pool2d_indices_fake(winners: torch.Tensor, *_window: object) -> torch.Tensor:
    return torch.empty_like(winners, dtype=torch.int64, memory_format=_pool_format(winners))


def _pool_format(tensor: torch.Tensor) -> torch.memory_format:
    """Return the op's memory format: 3-D tensors are never channels_last."""
    if tensor.dim() < 4:
        return torch.contiguous_format
    return torch._prims_common.suggest_memory_format(tensor)


@torch.library.register_fake("convtime::mlp")  # type: ignore[untyped-decorator]
def _mlp_fake(
    input: torch.Tensor,
    weights: torch.Tensor,  # noqa: ARG001
    outputs: int,
    activation: str,  # noqa: ARG001
) -> torch.Tensor:
    return input.new_empty((input.shape[0], outputs))


@torch.library.register_fake("convtime::mlp_backward")  # type: ignore[untyped-decorator]
def _mlp_backward_fake(
    grad_output: torch.Tensor,  # noqa: ARG001
    input: torch.Tensor,
    weights: torch.Tensor,
    activation: str,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    return input.new_empty(input.shape), weights.new_empty(weights.shape)


@torch.library.register_fake("convtime::spin_ns")  # type: ignore[untyped-decorator]
def _spin_ns_fake(nanoseconds: int, blocks: int = 1, threads: int = 1) -> torch.Tensor:  # noqa: ARG001
    return torch.empty((blocks, 2), dtype=torch.int64, device="cuda")


def _without_output(*_arguments: object, **_options: object) -> None:
    pass


for _name in ("mlp_steps", "sleep_cycles", "flush_l2"):
    torch.library.register_fake(f"convtime::{_name}", _without_output)


@torch.library.register_fake("convtime::read_clocks")  # type: ignore[untyped-decorator]
def _read_clocks_fake() -> torch.Tensor:
    return torch.empty(3, dtype=torch.int64, device="cuda")


@torch.library.register_fake("convtime::copy_stamped")  # type: ignore[untyped-decorator]
def _copy_stamped_fake(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-input.nbytes // _COPY_BLOCK_BYTES)
    return torch.empty_like(input), input.new_empty((blocks, 2), dtype=torch.int64)
