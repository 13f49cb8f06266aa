"""The ops as functions, and what torch.compile needs to know about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch.compiler import is_dynamo_compiling
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
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """2-D convolution with the arguments of :func:`torch.nn.functional.conv2d`.

    On a GPU, where PyTorch would use cuDNN, the call and those of its gradients are convtime's own:
    cuDNN plans, selected as PyTorch selects. Everywhere else they run the kernels that PyTorch
    runs. Gradients are defined to any order of backward differentiation, the second and above by
    PyTorch's own convolutions; forward-mode differentiation is refused.

    Args:
        input: shape (N, C, H, W) or (C, H, W); float16, bfloat16, float32 or float64.
        weight: shape (K, C / groups, R, S), same dtype and device as ``input``.
        bias: shape (K,), or None.
        stride: steps, one number or (vertical, horizontal), at least 1.
        padding: zeros added on both sides, one number or (vertical, horizontal); or ``"valid"``
            (none), or ``"same"`` (as many as keep the size; needs a stride of 1).
        dilation: steps between the kernel's elements, at least 1.
        groups: number of groups, divides C and K.
        policy: how cuDNN's plan is selected, here and for the gradients. ``"heuristic"`` is
            PyTorch's way with ``torch.backends.cudnn.benchmark`` off, ``"benchmark"`` its way with
            it on, and None is as that flag says at the time of the call. A tag of
            :func:`convtime.plan_cache`, such as ``"eng38_k2=8_k13=1"`` with or without
            ``"ConvFwd_"`` in front, is that engine with those knobs, or an error; the gradients
            then follow the flag.

    Returns:
        Shape (N, K, P, Q), or (K, P, Q) for a 3-D input.

    Raises:
        RuntimeError: for shapes, dtypes, devices or numbers that do not fit together, for an engine
            or a knob that cuDNN does not have for the convolution, and where plans would have to be
            timed while a CUDA graph is captured.
    """
    # Dynamo traces torch.ops, and cannot trace _C.
    if not is_dynamo_compiling():
        output = _C.conv2d(input, weight, bias, stride, padding, dilation, groups, policy)
        if output is not NotImplemented:
            return output
    return _conv2d_of_any_kind(input, weight, bias, stride, padding, dilation, groups, policy)


def _conv2d_of_any_kind(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Pair,
    padding: Pair | str,
    dilation: Pair,
    groups: int,
    policy: str | None,
) -> torch.Tensor:
    _check_tensors("conv2d", input=input, weight=weight)
    stride, dilation = (
        _numbers("conv2d", "stride", stride),
        _numbers("conv2d", "dilation", dilation),
    )
    if isinstance(padding, str):
        padding, surplus = resolve_padding("conv2d", weight.shape, stride, padding, dilation)
        input = pad_end(input, surplus)
    output: torch.Tensor = torch.ops.convtime.conv2d(
        input,
        weight,
        bias,
        stride,
        _numbers("conv2d", "padding", padding),
        dilation,
        groups,
        policy=policy,
    )
    return output


def conv2d_input(
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv2d` with respect to its input; as torch.nn.grad.conv2d_input.

    Args:
        input_size: shape (N, C, H, W) of the input.
        weight: shape (K, C / groups, R, S).
        grad_output: shape (N, K, P, Q) of the output; same dtype and device as ``weight``.
        stride: as for conv2d.
        padding: as for conv2d.
        dilation: as for conv2d.
        groups: as for conv2d.
        policy: as for conv2d; an engine's tag is one of dgrad, with or without ``"ConvBwdData_"``.

    Returns:
        Shape (N, C, H, W).

    Raises:
        RuntimeError: as conv2d.
    """
    op = "conv2d_input"
    _check_tensors(op, weight=weight, grad_output=grad_output)
    stride, dilation = _numbers(op, "stride", stride), _numbers(op, "dilation", dilation)
    surplus = (0, 0)
    if isinstance(padding, str):
        padding, surplus = resolve_padding(op, weight.shape, stride, padding, dilation)
    size = _size(op, "input_size", input_size)
    height, width = size[2] + surplus[0], size[3] + surplus[1]
    # One number in memory stands for the input, whose size alone matters, as in PyTorch's function.
    input = grad_output.new_empty(1).expand(size[0], size[1], height, width)
    grad_input: torch.Tensor = torch.ops.convtime.conv2d_backward(
        grad_output,
        input,
        weight,
        stride,
        _numbers(op, "padding", padding),
        dilation,
        groups,
        (True, False, False),
        policy=policy,
    )[0]
    return grad_input[:, :, : size[2], : size[3]] if any(surplus) else grad_input


def conv2d_weight(
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv2d` with respect to its weight; as torch.nn.grad.conv2d_weight.

    Args:
        input: shape (N, C, H, W).
        weight_size: shape (K, C / groups, R, S) of the weight.
        grad_output: shape (N, K, P, Q) of the output; same dtype and device as ``input``.
        stride: as for conv2d.
        padding: as for conv2d.
        dilation: as for conv2d.
        groups: as for conv2d.
        policy: as for conv2d; an engine's tag is one of wgrad, with or without
            ``"ConvBwdFilter_"``.

    Returns:
        Shape (K, C / groups, R, S).

    Raises:
        RuntimeError: as conv2d.
    """
    op = "conv2d_weight"
    _check_tensors(op, input=input, grad_output=grad_output)
    stride, dilation = _numbers(op, "stride", stride), _numbers(op, "dilation", dilation)
    size = _size(op, "weight_size", weight_size)
    if isinstance(padding, str):
        padding, surplus = resolve_padding(op, size, stride, padding, dilation)
        input = pad_end(input, surplus)
    grad_weight: torch.Tensor = torch.ops.convtime.conv2d_backward(
        grad_output,
        input,
        grad_output.new_empty(1).expand(size),
        stride,
        _numbers(op, "padding", padding),
        dilation,
        groups,
        (False, True, False),
        policy=policy,
    )[1]
    return grad_weight


def conv2d_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """The gradient of :func:`conv2d` with respect to its bias, as PyTorch computes it.

    Args:
        grad_output: shape (N, K, P, Q) of the output.

    Returns:
        Shape (K,).

    Raises:
        RuntimeError: if ``grad_output`` has another number of dimensions.
    """
    _check_tensors("conv2d_bias", grad_output=grad_output)
    if grad_output.dim() != 4:
        raise RuntimeError(
            f"conv2d_bias: grad_output must have shape (N, K, P, Q), got {list(grad_output.shape)}"
        )
    return grad_output.sum((0, 2, 3))


def _check_tensors(op: str, **tensors: object) -> None:
    for name, tensor in tensors.items():
        # What overrides torch's functions, such as torch.fx's proxies, is for torch.ops to handle.
        if not (isinstance(tensor, torch.Tensor) or hasattr(tensor, "__torch_function__")):
            raise RuntimeError(f"{op}: {name} must be a tensor, got {type(tensor).__name__}")


def _numbers(op: str, name: str, value: object) -> Sequence[int]:
    values = tuple(value) if isinstance(value, Sequence) else (value, value)
    for number in values:
        if not isinstance(number, int | torch.SymInt | SupportsIndex):
            raise RuntimeError(f"{op}: {name} must be one or two whole numbers, got {value!r}")
    return values


def _size(op: str, name: str, value: Sequence[int]) -> tuple[int, ...]:
    size = tuple(value)
    if len(size) != 4:
        raise RuntimeError(f"{op}: {name} must be four numbers, got {size}")
    return size


def resolve_padding(
    op: str,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: str,
    dilation: Sequence[int],
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Turns "same" and "valid" into numbers as ATen's conv2d.padding does.

    Where the padding has to be uneven, there is a surplus: zeros to put at the end of the input
    (pad_end).
    """
    if padding == "valid" or len(weight_size) != 4 or not dilation:
        return (0, 0), (0, 0)  # the op refuses the latter two
    if padding != "same":
        raise RuntimeError(f"{op}: padding must be a number, 'same' or 'valid', got {padding!r}")
    if any(step != 1 for step in stride):
        raise RuntimeError(f"{op}: padding 'same' needs a stride of 1, got {stride}")
    vertical = dilation[0] * (weight_size[2] - 1)
    horizontal = dilation[-1] * (weight_size[3] - 1)
    return (vertical // 2, horizontal // 2), (vertical % 2, horizontal % 2)


def pad_end(input: torch.Tensor, surplus: tuple[int, int]) -> torch.Tensor:
    vertical, horizontal = surplus
    return F.pad(input, (0, horizontal, 0, vertical)) if vertical or horizontal else input


@torch.library.register_fake("convtime::conv2d")  # type: ignore[untyped-decorator]
def _conv2d_fake(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    policy: str | None = None,  # noqa: ARG001
) -> torch.Tensor:
    _check_for_fake("conv2d", input, weight, dilation)
    # PyTorch's own op has the same result, shape, strides and all.
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)


@torch.library.register_fake("convtime::conv2d_backward")  # type: ignore[untyped-decorator]
def _conv2d_backward_fake(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    output_mask: Sequence[bool] = (True, True, True),
    *,
    policy: str | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    _check_for_fake("conv2d_backward", input, weight, dilation)
    gradients: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
    gradients = torch.ops.aten.convolution_backward(
        grad_output,
        input,
        weight,
        [weight.shape[0]],
        stride,
        padding,
        dilation,
        False,  # transposed
        [0, 0],  # output_padding
        groups,
        output_mask,
    )
    return gradients


def _check_for_fake(
    op: str, input: torch.Tensor, weight: torch.Tensor, dilation: Sequence[int]
) -> None:
    """Refuses what PyTorch's own fakes let through and the op does not."""
    torch._check(input.dtype in DTYPES, lambda: f"{op}: dtype must be in {DTYPES}")
    torch._check(input.device == weight.device, lambda: f"{op}: tensors on different devices")
    for size in (*weight.shape[2:], *dilation):
        torch._check(size >= 1, lambda: f"{op}: kernel size and dilation must be at least 1")


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
