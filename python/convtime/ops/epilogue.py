"""Convolutions fused with their epilogue in one kernel: a bias, an addend and an activation."""

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

    On a GPU, where PyTorch would use cuDNN for the convolution, this is one cuDNN graph and usually
    one kernel. With a ReLU, the graph, the selection of its plan, and the bits of the output are
    those of ``torch.cudnn_convolution_relu`` and ``torch.cudnn_convolution_add_relu``. However,
    this function follows torch's flags for deterministic algorithms; those ignore them. The
    convolution's result is not rounded before the sums and the activation, which are in float32 for
    16-bit tensors; separate ops round after each step.

    If cuDNN has no engine for the graph, one convtime kernel computes the epilogue, with a warning
    once for each problem and thread. The same happens without a warning in three cases: PyTorch
    does not use cuDNN for the convolution; plans are timed and this is faster; or cuDNN's engines
    compute the activation less accurately than PyTorch: ``tanh``, and without TF32 ``gelu_tanh`` in
    float32. On a CPU, each step is a PyTorch operation.

    For the gradient, ``input``, ``weight`` and the output are kept. ``gelu``, ``gelu_tanh``,
    ``silu``, and ``leaky_relu`` with a slope below 0 cannot be differentiated from their
    output. If a gradient will be needed, they run in a separate kernel after the fused one.
    Forward-mode derivatives and :func:`torch.vmap` compute each step with a separate op.

    Args:
        input: as for :func:`conv2d`.
        weight: as for conv2d.
        bias: as for conv2d.
        stride: as for conv2d.
        padding: as for conv2d.
        dilation: as for conv2d.
        groups: as for conv2d.
        other: the addend, with the output's shape and the dtype and device of ``input``, or None.
        alpha: factor of ``other``.
        activation: ``"relu"``, ``"relu6"``, ``"leaky_relu"``, ``"gelu"``, ``"gelu_tanh"`` (its
            approximation), ``"silu"``, ``"sigmoid"``, ``"tanh"``, or ``"identity"`` for none.
        negative_slope: slope of ``"leaky_relu"``.
        policy: as for conv2d. A tag starts with the graph's name, as in
            ``"ConvFwd_ADD_ADD_RELU_FWD_eng0"``, or with the engine.

    Returns:
        Shape (N, K, P, Q), or (K, P, Q) for a 3-D input, with the memory layout of conv2d's output.

    Raises:
        RuntimeError: as conv2d, and if ``activation`` is unknown.
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
