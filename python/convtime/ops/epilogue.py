"""Convolutions fused with their epilogue in one kernel: a bias, an addend and an activation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn import functional as F

from convtime.core.checks import check_type
from convtime.core.kinds import KINDS, ConvolutionKind, Numbers
from convtime.core.load import _C
from convtime.ops.arguments import (
    check_options,
    check_real,
    check_tensors,
    geometry,
    pad_end,
)
from convtime.ops.publish import publish
from convtime.ops.sharding import register_rules

Activation = Literal[
    "identity",
    "relu",
    "relu6",
    "leaky_relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "sigmoid",
    "tanh",
]

# PyTorch's own functions, of a tensor and the negative slope of leaky_relu.
ACTIVATIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "identity": lambda x, _slope: x,
    "relu": lambda x, _slope: torch.relu(x),
    "relu6": lambda x, _slope: F.relu6(x),
    "leaky_relu": F.leaky_relu,
    "gelu": lambda x, _slope: F.gelu(x),
    "gelu_tanh": lambda x, _slope: F.gelu(x, approximate="tanh"),
    "silu": lambda x, _slope: F.silu(x),
    "sigmoid": lambda x, _slope: torch.sigmoid(x),
    "tanh": lambda x, _slope: torch.tanh(x),
}

_EPILOGUE = """``activation({function}(input, weight, bias, ...) + alpha * other)``.

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
        input: as for :func:`{function}`.
        weight: as for {function}.
        bias: as for {function}.
        stride: as for {function}.
        padding: as for {function}.
        dilation: as for {function}.
        groups: as for {function}.
        other: the addend, with the output's shape and the dtype and device of ``input``, or None.
        alpha: factor of ``other``.
        activation: ``"relu"``, ``"relu6"``, ``"leaky_relu"``, ``"gelu"``, ``"gelu_tanh"`` (its
            approximation), ``"silu"``, ``"sigmoid"``, ``"tanh"``, or ``"identity"`` for none.
        negative_slope: slope of ``"leaky_relu"``.
        policy: as for {function}. A tag starts with the graph's name, as in
            ``"ConvFwd_ADD_ADD_RELU_FWD_eng0"``, or with the engine.

    Returns:
        Shape {output}, or {output_example} for an input without N, with the memory layout of
        {function}'s output.

    Raises:
        TypeError: as {function}.
        RuntimeError: as {function}, and if ``activation`` is unknown.
        torch.OutOfMemoryError: as {function}.
        torch.AcceleratorError: as {function}.
    """


class ConvolutionWithEpilogue(Protocol):
    def __call__(
        self,
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
    ) -> torch.Tensor: ...


def _with_epilogue(kind: ConvolutionKind) -> ConvolutionWithEpilogue:
    direct = getattr(_C, f"{kind.function}_epilogue")

    @publish(kind, "_epilogue", _EPILOGUE)
    def convolution(
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
        arguments = (
            input,
            weight,
            bias,
            stride,
            padding,
            dilation,
            groups,
            other,
            alpha,
            activation,
            negative_slope,
            policy,
        )
        # Dynamo traces torch.ops, and cannot trace _C.
        if not is_dynamo_compiling():
            output: torch.Tensor = direct(*arguments)
            if output is not NotImplemented:
                return output
        return _by_torch_ops(kind, *arguments)

    return convolution


def _by_torch_ops(
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
    """Call torch.ops: for calls that the direct entry does not handle, and for error messages."""
    function = f"{kind.function}_epilogue"
    check_tensors(function, input=input, weight=weight)
    check_options(function, bias=bias, other=other, policy=policy)
    if isinstance(weight, torch.Tensor) and weight.dim() != kind.rank + 2:
        raise RuntimeError(
            f"{function}: weight must have {kind.rank + 2} dimensions, got shape "
            f"{tuple(weight.shape)}"
        )
    check_type(f"{function}: activation", activation, str, "a str")
    check_real(function, "alpha", alpha)
    check_real(function, "negative_slope", negative_slope)
    register_rules()
    at = geometry(function, kind, weight.shape, stride, padding, dilation, groups)
    op = torch.ops.convtime.convolution_epilogue
    output: torch.Tensor = (op if is_dynamo_compiling() else partial(_C.call_op, op))(
        pad_end(input, at.surplus),
        weight,
        bias,
        other,
        at.stride,
        at.padding,
        at.dilation,
        at.groups,
        activation,
        alpha,
        negative_slope,
        policy=policy,
    )
    return output


# With types, because type checkers may look at them before they look at what makes them.
conv1d_epilogue: ConvolutionWithEpilogue = _with_epilogue(KINDS[0])
conv2d_epilogue: ConvolutionWithEpilogue = _with_epilogue(KINDS[1])
conv3d_epilogue: ConvolutionWithEpilogue = _with_epilogue(KINDS[2])
