"""Convolutions with what follows them in one kernel: a bias, an addend and an activation."""

from __future__ import annotations

from functools import partial

import torch
from torch.compiler import is_dynamo_compiling

from convtime.core.dimensions import Numbers
from convtime.core.kinds import KINDS, ConvolutionKind
from convtime.core.load import _C
from convtime.ops.activations import Activation
from convtime.ops.arguments import check_tensors, numbers, pad_end, padding_and_surplus
from convtime.ops.sharding import register_rules

_CONV1D, _CONV2D, _CONV3D = KINDS[:3]


def conv2d_epilogue(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    other: torch.Tensor | None = None,
    alpha: float = 1.0,
    activation: Activation = "relu",
    negative_slope: float = 0.01,
    policy: str | None = None,
) -> torch.Tensor:
    """``activation(conv2d(input, weight, bias, ...) + alpha * other)``.

    On a GPU, where PyTorch would use cuDNN for the convolution, it is one graph of cuDNN's, and
    mostly one kernel. With a ReLU, the graph and the selection of its plan are those of
    ``torch.cudnn_convolution_relu`` and ``torch.cudnn_convolution_add_relu``, and so are the bits
    of the output; but where torch's flags ask for deterministic algorithms, which those do not
    heed, this is one. What the convolution gives is not rounded before the sums and the activation,
    which are in float32 for 16-bit tensors; separate ops round after each step. Where cuDNN
    has no engine to choose for the graph, a warning says so, once for each problem and thread, and
    one kernel of convtime's does what follows the convolution. So it is, without a warning, where
    PyTorch does not use cuDNN for the convolution, where plans are timed and that is faster, and
    for activations that cuDNN's engines do not compute as exactly as PyTorch: ``tanh``, and without
    TF32 ``gelu_tanh`` in float32. On a CPU, each step is an operation of PyTorch's.

    For the gradient, ``input``, ``weight`` and the output are kept. ``gelu``, ``gelu_tanh``,
    ``silu``, and ``leaky_relu`` of a negative slope cannot be differentiated by their output: where
    a gradient will be asked for, they have a kernel of their own, after one that does all else.
    Forward-mode derivatives and :func:`torch.vmap` compute each step by an op of its own.

    Args:
        input: as for :func:`conv2d`; so are all up to ``groups``.
        weight: likewise.
        bias: likewise.
        stride: likewise.
        padding: likewise.
        dilation: likewise.
        groups: likewise.
        other: what is added, of the output's shape and of ``input``'s dtype and device, or None.
        alpha: what ``other`` is multiplied by.
        activation: ``"relu"``, ``"relu6"``, ``"leaky_relu"``, ``"gelu"``, ``"gelu_tanh"`` (its
            approximation), ``"silu"``, ``"sigmoid"``, ``"tanh"``, or ``"identity"`` for none.
        negative_slope: of ``"leaky_relu"``.
        policy: as for conv2d. A tag has the graph's name in front of the engine, as in
            ``"ConvFwd_ADD_ADD_RELU_FWD_eng0"``, or begins with the engine.

    Returns:
        Shape (N, K, P, Q), or (K, P, Q) for a 3-D input, in memory as conv2d's.

    Raises:
        RuntimeError: as conv2d, and for an ``activation`` that is none of these.
        torch.OutOfMemoryError: as conv2d.
        torch.AcceleratorError: as conv2d.
    """
    convolution = input, weight, bias, stride, padding, dilation, groups
    arguments = *convolution, other, alpha, activation, negative_slope, policy
    # Dynamo traces torch.ops, and cannot trace _C.
    if not is_dynamo_compiling():
        output = _C.conv2d_epilogue(*arguments)
        if output is not NotImplemented:
            return output
    return _of_any_kind(_CONV2D, *arguments)


def conv1d_epilogue(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    other: torch.Tensor | None = None,
    alpha: float = 1.0,
    activation: Activation = "relu",
    negative_slope: float = 0.01,
    policy: str | None = None,
) -> torch.Tensor:
    """``activation(conv1d(input, weight, bias, ...) + alpha * other)``; as conv2d_epilogue.

    Shapes are those of :func:`conv1d`.
    """
    convolution = input, weight, bias, stride, padding, dilation, groups
    arguments = *convolution, other, alpha, activation, negative_slope, policy
    # Dynamo traces torch.ops, and cannot trace _C.
    if not is_dynamo_compiling():
        output = _C.conv1d_epilogue(*arguments)
        if output is not NotImplemented:
            return output
    return _of_any_kind(_CONV1D, *arguments)


def conv3d_epilogue(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    other: torch.Tensor | None = None,
    alpha: float = 1.0,
    activation: Activation = "relu",
    negative_slope: float = 0.01,
    policy: str | None = None,
) -> torch.Tensor:
    """``activation(conv3d(input, weight, bias, ...) + alpha * other)``; as conv2d_epilogue.

    Shapes are those of :func:`conv3d`.
    """
    convolution = input, weight, bias, stride, padding, dilation, groups
    arguments = *convolution, other, alpha, activation, negative_slope, policy
    # Dynamo traces torch.ops, and cannot trace _C.
    if not is_dynamo_compiling():
        output = _C.conv3d_epilogue(*arguments)
        if output is not NotImplemented:
            return output
    return _of_any_kind(_CONV3D, *arguments)


def _of_any_kind(
    kind: ConvolutionKind,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
    other: torch.Tensor | None,
    alpha: float,
    activation: str,
    negative_slope: float,
    policy: str | None,
) -> torch.Tensor:
    function = f"{kind.function}_epilogue"
    check_tensors(function, input=input, weight=weight)
    if isinstance(weight, torch.Tensor) and weight.dim() != kind.rank + 2:
        raise RuntimeError(
            f"{function}: weight must have {kind.rank + 2} dimensions, got shape "
            f"{tuple(weight.shape)}"
        )
    if not isinstance(activation, str):
        raise RuntimeError(f"{function}: activation must be a str, got {activation!r}")
    register_rules()
    steps, gaps = numbers(kind, "stride", stride), numbers(kind, "dilation", dilation)
    pads, surplus = padding_and_surplus(kind, function, weight.shape, steps, padding, gaps)
    op = torch.ops.convtime.convolution_epilogue
    padded = pad_end(input, surplus)
    geometry = steps, pads, gaps, groups
    ending = activation, alpha, negative_slope
    call = op if is_dynamo_compiling() else partial(_C.call_op, op)
    output: torch.Tensor = call(padded, weight, bias, other, *geometry, *ending, policy=policy)
    return output
