"""The six convolutions, with torch.nn.functional's arguments and convtime's policy."""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from convtime.core.dimensions import Numbers
from convtime.core.kinds import KINDS, ConvolutionKind
from convtime.core.load import _C
from convtime.ops.arguments import check_tensors, numbers, pad_end, padding_and_surplus
from convtime.ops.sharding import register_rules

_CONV1D, _CONV2D, _CONV3D, _CONV_TRANSPOSE1D, _CONV_TRANSPOSE2D, _CONV_TRANSPOSE3D = KINDS


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

    On a GPU, where PyTorch would use cuDNN, convtime calls cuDNN itself, also for the gradients; it
    selects plans as PyTorch does. Otherwise, it runs the same kernels as PyTorch. Gradients of any
    order, forward-mode derivatives and :func:`torch.vmap` use the same convolutions as in PyTorch,
    under the same policy.

    Args:
        input: shape (N, C, H, W) or (C, H, W); float16, bfloat16, float32 or float64.
        weight: shape (K, C / groups, R, S), same dtype and device as ``input``.
        bias: shape (K,), or None.
        stride: steps, one number or (vertical, horizontal), at least 1.
        padding: zeros added on both sides, one number or (vertical, horizontal); or ``"valid"``
            (none), or ``"same"`` (keeps the size; needs a stride of 1).
        dilation: steps between the kernel's elements, at least 1.
        groups: number of groups, divides C and K.
        policy: how the cuDNN plan is selected, here and for the gradients. ``"heuristic"`` selects
            like PyTorch with ``torch.backends.cudnn.benchmark`` off, ``"benchmark"`` like PyTorch
            with it on, and None follows that flag at the time of the call. A tag from
            :func:`convtime.plan_cache`, such as ``"eng38_k2=8_k13=1"``, with or without the prefix
            ``"ConvFwd_"``, selects that engine with those knobs or raises an error. It overrides
            torch's flags for determinism and TF32; the gradients then follow the benchmark flag.
            Engines that PyTorch's errata forbid for the convolution are rejected.

    Returns:
        Shape (N, K, P, Q), or (K, P, Q) for a 3-D input.

    Raises:
        RuntimeError: shapes, dtypes, devices or numbers are invalid or inconsistent; cuDNN does not
            have the engine or a knob for the convolution; or plans would have to be timed during
            CUDA graph capture.
        torch.OutOfMemoryError: memory is insufficient for the output, or for the engine that the
            policy names.
        torch.AcceleratorError: CUDA itself reports an error.
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
    """1-D convolution: as :func:`conv2d`, with one number for each argument.

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
    """3-D convolution: as :func:`conv2d`, with one or three numbers for each argument.

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

    It is the gradient of a convolution with respect to its input, and uses cuDNN's plan for that
    gradient. Everything else is as for :func:`conv2d`.

    Args:
        input: shape (N, C, H, W) or (C, H, W); float16, bfloat16, float32 or float64.
        weight: shape (C, K / groups, R, S), same dtype and device as ``input``.
        bias: shape (K,), or None.
        stride: steps in the output, one number or (vertical, horizontal), at least 1.
        padding: rows and columns removed from both sides of the output, one number or
            (vertical, horizontal).
        output_padding: rows and columns added at the end of the output, smaller than ``stride`` or
            ``dilation``.
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
    """1-D transposed convolution: as :func:`conv_transpose2d`, with one number for each argument.

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
    """3-D transposed convolution: as :func:`conv_transpose2d`, with one or three numbers each.

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


def _of_any_kind(
    kind: ConvolutionKind,
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
    """Call torch.ops: for calls that the direct entry does not handle, and for error messages."""
    check_tensors(kind.function, input=input, weight=weight)
    register_rules()
    steps, gaps = numbers(kind, "stride", stride), numbers(kind, "dilation", dilation)
    pads, surplus = padding_and_surplus(kind, kind.function, weight.shape, steps, padding, gaps)
    call = getattr(torch.ops.convtime, kind.function)
    output: torch.Tensor
    if kind.transposed:
        extra = numbers(kind, "output_padding", output_padding)
        output = call(input, weight, bias, steps, pads, extra, groups, gaps, policy=policy)
    else:
        input = pad_end(input, surplus)
        output = call(input, weight, bias, steps, pads, gaps, groups, policy=policy)
    return output
