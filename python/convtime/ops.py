"""The ops as functions, and what torch.compile needs to know about them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn import functional as F

from convtime._load import _C as _C  # registers torch.ops.convtime

Numbers = int | Sequence[int]

_COPY_BLOCK_BYTES = 32_768  # that a block of copy_stamped copies

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class _Op:
    name: str
    spatial: int
    transposed: bool


_CONV1D, _CONV2D, _CONV3D = (_Op(f"conv{n}d", n, False) for n in (1, 2, 3))
_CONV_TRANSPOSE1D, _CONV_TRANSPOSE2D, _CONV_TRANSPOSE3D = (
    _Op(f"conv_transpose{n}d", n, True) for n in (1, 2, 3)
)
_OPS = (_CONV1D, _CONV2D, _CONV3D, _CONV_TRANSPOSE1D, _CONV_TRANSPOSE2D, _CONV_TRANSPOSE3D)

# The numbers that an argument takes, by the number of spatial dimensions.
_COUNTS = {1: "one whole number", 2: "one or two whole numbers", 3: "one or three whole numbers"}


def conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
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
            ``"ConvFwd_"`` in front, is that engine with those knobs, whatever torch's flags for
            determinism and TF32 ask for, or an error; the gradients then follow the flag.

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
    return _of_any_kind(_CONV2D, input, weight, bias, stride, padding, 0, dilation, groups, policy)


def conv1d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """1-D convolution: as :func:`conv2d`, with one number for each.

    Shapes: ``input`` (N, C, L) or (C, L); ``weight`` (K, C / groups, S);
    the output (N, K, P) or (K, P).
    """
    if not is_dynamo_compiling():
        output = _C.conv1d(input, weight, bias, stride, padding, dilation, groups, policy)
        if output is not NotImplemented:
            return output
    return _of_any_kind(_CONV1D, input, weight, bias, stride, padding, 0, dilation, groups, policy)


def conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """3-D convolution: as :func:`conv2d`, with one number or three for each.

    Shapes: ``input`` (N, C, D, H, W) or (C, D, H, W); ``weight`` (K, C / groups, T, R, S);
    the output (N, K, O, P, Q) or (K, O, P, Q).
    """
    if not is_dynamo_compiling():
        output = _C.conv3d(input, weight, bias, stride, padding, dilation, groups, policy)
        if output is not NotImplemented:
            return output
    return _of_any_kind(_CONV3D, input, weight, bias, stride, padding, 0, dilation, groups, policy)


def conv_transpose2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """2-D transposed convolution; as :func:`torch.nn.functional.conv_transpose2d`.

    It is the gradient of a convolution with respect to its input, and cuDNN's plan is one of that.
    All else is as for :func:`conv2d`.

    Args:
        input: shape (N, C, H, W) or (C, H, W); float16, bfloat16, float32 or float64.
        weight: shape (C, K / groups, R, S), same dtype and device as ``input``.
        bias: shape (K,), or None.
        stride: steps in the output, one number or (vertical, horizontal), at least 1.
        padding: rows and columns that the output loses on both sides, one number or
            (vertical, horizontal).
        output_padding: rows and columns that the output gains at its end, smaller than
            ``stride`` or ``dilation``.
        groups: number of groups, divides C and K.
        dilation: steps between the kernel's elements, at least 1.
        policy: as for conv2d; an engine's tag is one of dgrad, with or without ``"ConvBwdData_"``.

    Returns:
        Shape (N, K, P, Q), or (K, P, Q) for a 3-D input.

    Raises:
        RuntimeError: as conv2d.
    """
    if not is_dynamo_compiling():
        output = _C.conv_transpose2d(
            input, weight, bias, stride, padding, output_padding, groups, dilation, policy
        )
        if output is not NotImplemented:
            return output
    return _of_any_kind(
        _CONV_TRANSPOSE2D,
        input,
        weight,
        bias,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def conv_transpose1d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """1-D transposed convolution: as :func:`conv_transpose2d`, with one number for each.

    Shapes: ``input`` (N, C, L) or (C, L); ``weight`` (C, K / groups, S);
    the output (N, K, P) or (K, P).
    """
    if not is_dynamo_compiling():
        output = _C.conv_transpose1d(
            input, weight, bias, stride, padding, output_padding, groups, dilation, policy
        )
        if output is not NotImplemented:
            return output
    return _of_any_kind(
        _CONV_TRANSPOSE1D,
        input,
        weight,
        bias,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def conv_transpose3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """3-D transposed convolution: as :func:`conv_transpose2d`, with one number or three for each.

    Shapes: ``input`` (N, C, D, H, W) or (C, D, H, W); ``weight`` (C, K / groups, T, R, S);
    the output (N, K, O, P, Q) or (K, O, P, Q).
    """
    if not is_dynamo_compiling():
        output = _C.conv_transpose3d(
            input, weight, bias, stride, padding, output_padding, groups, dilation, policy
        )
        if output is not NotImplemented:
            return output
    return _of_any_kind(
        _CONV_TRANSPOSE3D,
        input,
        weight,
        bias,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def conv2d_input(
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
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
    return _input_gradient(
        _CONV2D, input_size, weight, grad_output, stride, padding, 0, dilation, groups, policy
    )


def conv2d_weight(
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
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
    return _weight_gradient(
        _CONV2D, input, weight_size, grad_output, stride, padding, 0, dilation, groups, policy
    )


def conv2d_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """The gradient of :func:`conv2d` and :func:`conv_transpose2d` with respect to their bias.

    Args:
        grad_output: shape (N, K, P, Q) of the output.

    Returns:
        Shape (K,), as PyTorch computes it.

    Raises:
        RuntimeError: if ``grad_output`` has another number of dimensions.
    """
    return _bias_gradient(_CONV2D, grad_output)


def conv1d_input(
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv1d` with respect to its input.

    As :func:`conv2d_input`. Shapes: the input (N, C, L);
    ``weight`` (K, C / groups, S); ``grad_output`` (N, K, P).
    """
    return _input_gradient(
        _CONV1D, input_size, weight, grad_output, stride, padding, 0, dilation, groups, policy
    )


def conv1d_weight(
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv1d` with respect to its weight.

    As :func:`conv2d_weight`. Shapes: ``input`` (N, C, L);
    the weight (K, C / groups, S); ``grad_output`` (N, K, P).
    """
    return _weight_gradient(
        _CONV1D, input, weight_size, grad_output, stride, padding, 0, dilation, groups, policy
    )


def conv1d_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """As :func:`conv2d_bias`, for ``grad_output`` (N, K, P)."""
    return _bias_gradient(_CONV1D, grad_output)


def conv3d_input(
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv3d` with respect to its input.

    As :func:`conv2d_input`. Shapes: the input (N, C, D, H, W);
    ``weight`` (K, C / groups, T, R, S); ``grad_output`` (N, K, O, P, Q).
    """
    return _input_gradient(
        _CONV3D, input_size, weight, grad_output, stride, padding, 0, dilation, groups, policy
    )


def conv3d_weight(
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv3d` with respect to its weight.

    As :func:`conv2d_weight`. Shapes: ``input`` (N, C, D, H, W);
    the weight (K, C / groups, T, R, S); ``grad_output`` (N, K, O, P, Q).
    """
    return _weight_gradient(
        _CONV3D, input, weight_size, grad_output, stride, padding, 0, dilation, groups, policy
    )


def conv3d_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """As :func:`conv2d_bias`, for ``grad_output`` (N, K, O, P, Q)."""
    return _bias_gradient(_CONV3D, grad_output)


def conv_transpose2d_input(
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv_transpose2d` with respect to its input.

    Args:
        input_size: shape (N, C, H, W) of the input.
        weight: shape (C, K / groups, R, S).
        grad_output: shape (N, K, P, Q) of the output; same dtype and device as ``weight``.
        stride: as for conv_transpose2d.
        padding: as for conv_transpose2d.
        output_padding: as for conv_transpose2d.
        groups: as for conv_transpose2d.
        dilation: as for conv_transpose2d.
        policy: as for conv2d; an engine's tag is one of fprop, with or without ``"ConvFwd_"``.

    Returns:
        Shape (N, C, H, W).

    Raises:
        RuntimeError: as conv_transpose2d.
    """
    return _input_gradient(
        _CONV_TRANSPOSE2D,
        input_size,
        weight,
        grad_output,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def conv_transpose2d_weight(
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv_transpose2d` with respect to its weight.

    Args:
        input: shape (N, C, H, W).
        weight_size: shape (C, K / groups, R, S) of the weight.
        grad_output: shape (N, K, P, Q) of the output; same dtype and device as ``input``.
        stride: as for conv_transpose2d.
        padding: as for conv_transpose2d.
        output_padding: as for conv_transpose2d.
        groups: as for conv_transpose2d.
        dilation: as for conv_transpose2d.
        policy: as for conv2d; an engine's tag is one of wgrad, with or without
            ``"ConvBwdFilter_"``.

    Returns:
        Shape (C, K / groups, R, S).

    Raises:
        RuntimeError: as conv_transpose2d.
    """
    return _weight_gradient(
        _CONV_TRANSPOSE2D,
        input,
        weight_size,
        grad_output,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def conv_transpose1d_input(
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv_transpose1d` with respect to its input.

    As :func:`conv_transpose2d_input`. Shapes: the input (N, C, L);
    ``weight`` (C, K / groups, S); ``grad_output`` (N, K, P).
    """
    return _input_gradient(
        _CONV_TRANSPOSE1D,
        input_size,
        weight,
        grad_output,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def conv_transpose1d_weight(
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv_transpose1d` with respect to its weight.

    As :func:`conv_transpose2d_weight`. Shapes: ``input`` (N, C, L);
    the weight (C, K / groups, S); ``grad_output`` (N, K, P).
    """
    return _weight_gradient(
        _CONV_TRANSPOSE1D,
        input,
        weight_size,
        grad_output,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def conv_transpose3d_input(
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv_transpose3d` with respect to its input.

    As :func:`conv_transpose2d_input`. Shapes: the input (N, C, D, H, W);
    ``weight`` (C, K / groups, T, R, S); ``grad_output`` (N, K, O, P, Q).
    """
    return _input_gradient(
        _CONV_TRANSPOSE3D,
        input_size,
        weight,
        grad_output,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def conv_transpose3d_weight(
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    policy: str | None = None,
) -> torch.Tensor:
    """The gradient of :func:`conv_transpose3d` with respect to its weight.

    As :func:`conv_transpose2d_weight`. Shapes: ``input`` (N, C, D, H, W);
    the weight (C, K / groups, T, R, S); ``grad_output`` (N, K, O, P, Q).
    """
    return _weight_gradient(
        _CONV_TRANSPOSE3D,
        input,
        weight_size,
        grad_output,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        policy,
    )


def _of_any_kind(
    op: _Op,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Numbers,
    padding: Numbers | str,
    output_padding: Numbers,
    dilation: Numbers,
    groups: int,
    policy: str | None,
) -> torch.Tensor:
    """Through torch.ops: for what the direct entry leaves, and to say what is wrong."""
    _check_tensors(op.name, input=input, weight=weight)
    steps, gaps = _numbers(op, "stride", stride), _numbers(op, "dilation", dilation)
    pads, surplus = _padding(op, op.name, weight.shape, steps, padding, gaps)
    call = getattr(torch.ops.convtime, op.name)
    output: torch.Tensor
    if op.transposed:
        extra = _numbers(op, "output_padding", output_padding)
        output = call(input, weight, bias, steps, pads, extra, groups, gaps, policy=policy)
    else:
        input = pad_end(input, surplus)
        output = call(input, weight, bias, steps, pads, gaps, groups, policy=policy)
    return output


def _input_gradient(
    op: _Op,
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Numbers,
    padding: Numbers | str,
    output_padding: Numbers,
    dilation: Numbers,
    groups: int,
    policy: str | None,
) -> torch.Tensor:
    name = f"{op.name}_input"
    _check_tensors(name, weight=weight, grad_output=grad_output)
    size = _size(op, name, "input_size", input_size)
    steps, gaps = _numbers(op, "stride", stride), _numbers(op, "dilation", dilation)
    pads, surplus = _padding(op, name, weight.shape, steps, padding, gaps)
    padded = (*size[:2], *(length + end for length, end in zip(size[2:], surplus, strict=True)))
    grad_input: torch.Tensor = torch.ops.convtime.convolution_backward(
        grad_output,
        # One number stands for the input, whose size alone matters, as in PyTorch's function.
        grad_output.new_empty(1).expand(padded),
        weight,
        steps,
        pads,
        gaps,
        op.transposed,
        _numbers(op, "output_padding", output_padding),
        groups,
        (True, False, False),
        policy=policy,
    )[0]
    for dim, end in enumerate(surplus, start=2):
        if end:
            grad_input = grad_input.narrow(dim, 0, size[dim])
    return grad_input


def _weight_gradient(
    op: _Op,
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Numbers,
    padding: Numbers | str,
    output_padding: Numbers,
    dilation: Numbers,
    groups: int,
    policy: str | None,
) -> torch.Tensor:
    name = f"{op.name}_weight"
    _check_tensors(name, input=input, grad_output=grad_output)
    size = _size(op, name, "weight_size", weight_size)
    steps, gaps = _numbers(op, "stride", stride), _numbers(op, "dilation", dilation)
    pads, surplus = _padding(op, name, size, steps, padding, gaps)
    grad_weight: torch.Tensor = torch.ops.convtime.convolution_backward(
        grad_output,
        pad_end(input, surplus),
        grad_output.new_empty(1).expand(size),
        steps,
        pads,
        gaps,
        op.transposed,
        _numbers(op, "output_padding", output_padding),
        groups,
        (False, True, False),
        policy=policy,
    )[1]
    return grad_weight


def _bias_gradient(op: _Op, grad_output: torch.Tensor) -> torch.Tensor:
    name = f"{op.name}_bias"
    _check_tensors(name, grad_output=grad_output)
    if grad_output.dim() != op.spatial + 2:
        shape = {1: "(N, K, P)", 2: "(N, K, P, Q)", 3: "(N, K, O, P, Q)"}[op.spatial]
        raise RuntimeError(
            f"{name}: grad_output must have shape {shape}, got {list(grad_output.shape)}"
        )
    return grad_output.sum((0, *range(2, grad_output.dim())))


def _check_tensors(op: str, **tensors: object) -> None:
    for name, tensor in tensors.items():
        # What overrides torch's functions, such as torch.fx's proxies, is for torch.ops to handle.
        if not (isinstance(tensor, torch.Tensor) or hasattr(tensor, "__torch_function__")):
            raise RuntimeError(f"{op}: {name} must be a tensor, got {type(tensor).__name__}")


def _numbers(op: _Op, name: str, value: object) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    for number in values:
        if not isinstance(number, int | torch.SymInt | SupportsIndex):
            raise RuntimeError(f"{op.name}: {name} must be {_COUNTS[op.spatial]}, got {value!r}")
    return values * op.spatial if len(values) == 1 else values


def _size(op: _Op, function: str, name: str, value: Sequence[int]) -> tuple[int, ...]:
    size = tuple(value)
    if len(size) != op.spatial + 2:
        count = {1: "three", 2: "four", 3: "five"}[op.spatial]
        raise RuntimeError(f"{function}: {name} must be {count} numbers, got {size}")
    return size


def _padding(
    op: _Op,
    function: str,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: Numbers | str,
    dilation: Sequence[int],
) -> tuple[Sequence[int], tuple[int, ...]]:
    """The padding as numbers, and the surplus of resolve_padding."""
    if not isinstance(padding, str):
        return _numbers(op, "padding", padding), (0,) * op.spatial
    if op.transposed:
        raise RuntimeError(f"{function}: padding must be {_COUNTS[op.spatial]}, got {padding!r}")
    return resolve_padding(function, op.spatial, weight_size, stride, padding, dilation)


def resolve_padding(
    function: str,
    rank: int,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: str,
    dilation: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Turns "same" and "valid" into numbers as ATen's conv2d.padding does.

    Where the padding has to be uneven, there is a surplus: zeros to put at the end of the input
    (pad_end).
    """
    none = (0,) * rank
    fits = len(weight_size) == rank + 2 and len(dilation) == rank
    if padding == "valid" or not fits:  # the op refuses what does not fit
        return none, none
    if padding != "same":
        raise RuntimeError(
            f"{function}: padding must be a number, 'same' or 'valid', got {padding!r}"
        )
    if any(step != 1 for step in stride):
        raise RuntimeError(f"{function}: padding 'same' needs a stride of 1, got {stride}")
    total = [gap * (size - 1) for gap, size in zip(dilation, weight_size[2:], strict=True)]
    return tuple(zeros // 2 for zeros in total), tuple(zeros % 2 for zeros in total)


def pad_end(input: torch.Tensor, surplus: Sequence[int]) -> torch.Tensor:
    if not any(surplus):
        return input
    # F.pad takes the last dimension first, and its start before its end.
    return F.pad(input, [zeros for end in reversed(surplus) for zeros in (0, end)])


def _register_fake(op: _Op) -> None:
    pytorchs = getattr(F, op.name)  # has the same result, shape, strides and all
    one, none = (1,) * op.spatial, (0,) * op.spatial

    def conv(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Sequence[int] = one,
        padding: Sequence[int] = none,
        dilation: Sequence[int] = one,
        groups: int = 1,
        *,
        policy: str | None = None,  # noqa: ARG001
    ) -> torch.Tensor:
        _check_for_fake(op.name, input, weight, dilation)
        output: torch.Tensor = pytorchs(input, weight, bias, stride, padding, dilation, groups)
        return output

    def conv_transpose(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Sequence[int] = one,
        padding: Sequence[int] = none,
        output_padding: Sequence[int] = none,
        groups: int = 1,
        dilation: Sequence[int] = one,
        *,
        policy: str | None = None,  # noqa: ARG001
    ) -> torch.Tensor:
        _check_for_fake(op.name, input, weight, dilation)
        if input.dim() < weight.dim() or not _is_empty_batch(input):
            _check_output_padding_for_fake(op.name, stride, output_padding, dilation)
        output: torch.Tensor = pytorchs(
            input, weight, bias, stride, padding, output_padding, groups, dilation
        )
        return output

    torch.library.register_fake(f"convtime::{op.name}", conv_transpose if op.transposed else conv)


for _op in _OPS:
    _register_fake(_op)


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
    name = "convolution_backward"
    _check_for_fake(name, input, weight, dilation)
    if transposed and not _is_empty_batch(input):
        _check_output_padding_for_fake(name, stride, output_padding, dilation)
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


def _check_for_fake(
    op: str, input: torch.Tensor, weight: torch.Tensor, dilation: Sequence[int]
) -> None:
    """Refuses what PyTorch's own fakes let through and the op does not."""
    torch._check(input.dtype in DTYPES, lambda: f"{op}: dtype must be in {DTYPES}")
    torch._check(input.device == weight.device, lambda: f"{op}: tensors on different devices")
    for size in (*weight.shape[2:], *dilation):
        torch._check(size >= 1, lambda: f"{op}: kernel size and dilation must be at least 1")


def _is_empty_batch(input: torch.Tensor) -> bool:
    """Whether nothing will be computed, so that the op and PyTorch take any output_padding."""
    batch = input.shape[0]
    # A symbolic size is not compared: that would tie compiled code to batches that are not empty.
    return isinstance(batch, int) and batch == 0


def _check_output_padding_for_fake(
    op: str, stride: Sequence[int], output_padding: Sequence[int], dilation: Sequence[int]
) -> None:
    """As _check_for_fake, for transposed convolutions."""
    for extra, step, gap in zip(output_padding, stride, dilation, strict=False):
        torch._check(
            extra < max(step, gap),
            lambda: f"{op}: output_padding must be smaller than stride or dilation",
        )


@functools.cache
def register_flop_formulas() -> None:
    """Has torch.utils.flop_counter count the ops as it counts PyTorch's.

    Not done at import, which it would make twice as long: torch's module imports Triton.
    """
    from torch.utils import flop_counter

    def forward(
        input: list[int],
        weight: list[int],
        *_arguments: object,
        transposed: bool,
        out_shape: list[int],
        **_options: object,
    ) -> int:
        if len(input) < len(weight):  # the formula takes the first size for the batch's
            input, out_shape = [1, *input], [1, *out_shape]
        flops: int = flop_counter.conv_flop_count(input, weight, out_shape, transposed)
        return flops

    for op in _OPS:
        register = flop_counter.register_flop_formula(getattr(torch.ops.convtime, op.name))
        register(functools.partial(forward, transposed=op.transposed))

    def backward(
        grad_output: object,
        input: object,
        weight: object,
        *arguments: object,
        out_val: object,
        **_options: object,
    ) -> int:
        # PyTorch's op takes the bias's sizes, too, after the weight.
        flops: int = flop_counter.conv_backward_flop(
            grad_output, input, weight, None, *arguments, out_val=out_val
        )
        return flops

    name = torch.ops.convtime.convolution_backward
    flop_counter.register_flop_formula(name, get_raw=True)(backward)


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
