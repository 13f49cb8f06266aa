"""The gradients of the convolutions as functions, as in torch.nn.grad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from convtime.core.kinds import KINDS, ConvolutionKind, Numbers
from convtime.ops.arguments import (
    Geometry,
    check_options,
    check_sizes,
    check_tensors,
    geometry,
    pad_end,
)
from convtime.ops.publish import publish, shapes
from convtime.ops.sharding import register_rules

_INPUT_GRADIENT = """The gradient of :func:`{function}` with respect to its input.

    Like torch.nn.grad's; arguments not listed here are as for :func:`{function}`.

    Args:
        input_size: shape {input} of the input.
        weight: shape {weight}.
        grad_output: shape {output} of the output; same dtype and device as ``weight``.
        policy: as for :func:`{function}`; an engine's tag is one of
            {engines} in front.

    Returns:
        Shape {input}.

    Raises:
        TypeError: as :func:`{function}`.
        RuntimeError: as :func:`{function}`.
    """

_WEIGHT_GRADIENT = """The gradient of :func:`{function}` with respect to its weight.

    Like torch.nn.grad's; arguments not listed here are as for :func:`{function}`.

    Args:
        weight_size: shape {weight} of the weight.
        input: shape {input}.
        grad_output: shape {output} of the output; same dtype and device as ``input``.
        policy: as for :func:`{function}`; an engine's tag is one of
            wgrad, with or without ``ConvBwdFilter_`` in front.

    Returns:
        Shape {weight}.

    Raises:
        TypeError: as :func:`{function}`.
        RuntimeError: as :func:`{function}`.
    """

_BIAS_GRADIENT = """The gradient of conv{rank}d and conv_transpose{rank}d with respect to the bias.

    Args:
        grad_output: shape {output} of the output.

    Returns:
        Shape (K,), as PyTorch computes it.

    Raises:
        TypeError: if ``grad_output`` is not a tensor.
        RuntimeError: if ``grad_output`` has a different number of dimensions.
    """


class InputGradient(Protocol):
    def __call__(
        self,
        input_size: Sequence[int],
        weight: torch.Tensor,
        grad_output: torch.Tensor,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        *,
        policy: str | None = None,
    ) -> torch.Tensor: ...


class WeightGradient(Protocol):
    def __call__(
        self,
        input: torch.Tensor,
        weight_size: Sequence[int],
        grad_output: torch.Tensor,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        *,
        policy: str | None = None,
    ) -> torch.Tensor: ...


class TransposedInputGradient(Protocol):
    def __call__(
        self,
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
    ) -> torch.Tensor: ...


class TransposedWeightGradient(Protocol):
    def __call__(
        self,
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
    ) -> torch.Tensor: ...


class BiasGradient(Protocol):
    def __call__(self, grad_output: torch.Tensor) -> torch.Tensor: ...


def _input_gradient(kind: ConvolutionKind) -> InputGradient:
    @publish(kind, "_input", _INPUT_GRADIENT, engines="dgrad, with or without ``ConvBwdData_``")
    def gradient(
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
        return _grad_input(
            kind, input_size, weight, grad_output, stride, padding, dilation, groups, 0, policy
        )

    return gradient


def _weight_gradient(kind: ConvolutionKind) -> WeightGradient:
    @publish(kind, "_weight", _WEIGHT_GRADIENT)
    def gradient(
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
        return _grad_weight(
            kind, input, weight_size, grad_output, stride, padding, dilation, groups, 0, policy
        )

    return gradient


def _transposed_input_gradient(kind: ConvolutionKind) -> TransposedInputGradient:
    @publish(kind, "_input", _INPUT_GRADIENT, engines="fprop, with or without ``ConvFwd_``")
    def gradient(
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
        return _grad_input(
            kind, input_size, weight, grad_output, stride, padding, dilation, groups,
            output_padding, policy,
        )  # fmt: skip

    return gradient


def _transposed_weight_gradient(kind: ConvolutionKind) -> TransposedWeightGradient:
    @publish(kind, "_weight", _WEIGHT_GRADIENT)
    def gradient(
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
        return _grad_weight(
            kind, input, weight_size, grad_output, stride, padding, dilation, groups,
            output_padding, policy,
        )  # fmt: skip

    return gradient


def _bias_gradient(kind: ConvolutionKind) -> BiasGradient:
    @publish(kind, "_bias", _BIAS_GRADIENT)
    def gradient(grad_output: torch.Tensor) -> torch.Tensor:
        function = f"{kind.function}_bias"
        check_tensors(function, grad_output=grad_output)
        if grad_output.dim() != kind.rank + 2:
            raise RuntimeError(
                f"{function}: grad_output must have shape {shapes(kind)['output']}, "
                f"got {list(grad_output.shape)}"
            )
        return grad_output.sum((0, *range(2, grad_output.dim())))

    return gradient


def _grad_input(
    kind: ConvolutionKind,
    input_size: Sequence[int],
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
    output_padding: Numbers,
    policy: str | None,
) -> torch.Tensor:
    function = f"{kind.function}_input"
    check_tensors(function, weight=weight, grad_output=grad_output)
    check_options(function, policy=policy)
    size = check_sizes(function, kind.rank, "input_size", input_size)
    at = geometry(function, kind, weight.shape, stride, padding, dilation, groups, output_padding)
    padded = (*size[:2], *(length + end for length, end in zip(size[2:], at.surplus, strict=True)))
    # One element, expanded, represents the input: as in PyTorch, only its size matters.
    input = grad_output.new_empty(1).expand(padded)
    gradient = _backward(kind, 0, grad_output, input, weight, at, policy)
    return gradient[tuple(map(slice, size))] if any(at.surplus) else gradient


def _grad_weight(
    kind: ConvolutionKind,
    input: torch.Tensor,
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
    output_padding: Numbers,
    policy: str | None,
) -> torch.Tensor:
    function = f"{kind.function}_weight"
    check_tensors(function, input=input, grad_output=grad_output)
    check_options(function, policy=policy)
    size = check_sizes(function, kind.rank, "weight_size", weight_size)
    at = geometry(function, kind, size, stride, padding, dilation, groups, output_padding)
    weight = grad_output.new_empty(1).expand(size)
    return _backward(kind, 1, grad_output, pad_end(input, at.surplus), weight, at, policy)


def _backward(
    kind: ConvolutionKind,
    index: int,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    at: Geometry,
    policy: str | None,
) -> torch.Tensor:
    """Compute one gradient: that of the input (0) or of the weight (1)."""
    register_rules()
    gradient: torch.Tensor = torch.ops.convtime.convolution_backward(
        grad_output,
        input,
        weight,
        at.stride,
        at.padding,
        at.dilation,
        kind.transposed,
        at.output_padding,
        at.groups,
        (index == 0, index == 1, False),
        policy=policy,
    )[index]
    return gradient


conv1d_input, conv2d_input, conv3d_input = map(_input_gradient, KINDS[:3])
conv1d_weight, conv2d_weight, conv3d_weight = map(_weight_gradient, KINDS[:3])
conv1d_bias, conv2d_bias, conv3d_bias = map(_bias_gradient, KINDS[:3])
conv_transpose1d_input, conv_transpose2d_input, conv_transpose3d_input = map(
    _transposed_input_gradient, KINDS[3:]
)
conv_transpose1d_weight, conv_transpose2d_weight, conv_transpose3d_weight = map(
    _transposed_weight_gradient, KINDS[3:]
)
