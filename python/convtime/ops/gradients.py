"""The gradients of the convolutions as functions, as in torch.nn.grad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from convtime.core.dimensions import Numbers
from convtime.core.kinds import KINDS, ConvolutionKind
from convtime.ops.arguments import check_tensors, numbers, pad_end, padding_and_surplus, size_of
from convtime.ops.sharding import register_rules

_SPATIAL = {1: "L", 2: "H, W", 3: "D, H, W"}
_KERNEL = {1: "S", 2: "R, S", 3: "T, R, S"}
_SPATIAL_OUT = {1: "P", 2: "P, Q", 3: "O, P, Q"}


class InputGradient(Protocol):
    """The gradient of a convolution with respect to its input."""

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
    """The gradient of a convolution with respect to its weight."""

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
    """The gradient of a transposed convolution with respect to its input."""

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
    """The gradient of a transposed convolution with respect to its weight."""

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
    """The gradient of a convolution, transposed or not, with respect to its bias."""

    def __call__(self, grad_output: torch.Tensor) -> torch.Tensor: ...


def _input_gradient(kind: ConvolutionKind) -> InputGradient:
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
            kind, input_size, weight, grad_output, stride, padding, 0, dilation, groups, policy
        )

    _describe(gradient, kind, "input")
    return gradient


def _weight_gradient(kind: ConvolutionKind) -> WeightGradient:
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
            kind, input, weight_size, grad_output, stride, padding, 0, dilation, groups, policy
        )

    _describe(gradient, kind, "weight")
    return gradient


def _transposed_input_gradient(kind: ConvolutionKind) -> TransposedInputGradient:
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
            kind, input_size, weight, grad_output, stride, padding, output_padding, dilation,
            groups, policy,
        )  # fmt: skip

    _describe(gradient, kind, "input")
    return gradient


def _transposed_weight_gradient(kind: ConvolutionKind) -> TransposedWeightGradient:
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
            kind, input, weight_size, grad_output, stride, padding, output_padding, dilation,
            groups, policy,
        )  # fmt: skip

    _describe(gradient, kind, "weight")
    return gradient


def _bias_gradient(kind: ConvolutionKind) -> BiasGradient:
    def gradient(grad_output: torch.Tensor) -> torch.Tensor:
        name = f"{kind.function}_bias"
        check_tensors(name, grad_output=grad_output)
        if grad_output.dim() != kind.rank + 2:
            raise RuntimeError(
                f"{name}: grad_output must have shape (N, K, {_SPATIAL_OUT[kind.rank]}), "
                f"got {list(grad_output.shape)}"
            )
        return grad_output.sum((0, *range(2, grad_output.dim())))

    _describe(gradient, kind, "bias")
    return gradient


def _describe(gradient: Callable[..., torch.Tensor], kind: ConvolutionKind, of: str) -> None:
    """Give a generated gradient function its public name and docstring."""
    name = f"{kind.function}_{of}"
    gradient.__name__ = gradient.__qualname__ = name
    output = f"(N, K, {_SPATIAL_OUT[kind.rank]})"
    if of == "bias":
        transposed = f"conv_transpose{kind.rank}d"
        gradient.__doc__ = f"""The gradient of :func:`{kind.function}` and :func:`{transposed}` by the bias.

        Args:
            grad_output: shape {output} of the output.

        Returns:
            Shape (K,), as PyTorch computes it.

        Raises:
            RuntimeError: if ``grad_output`` has a different number of dimensions.
        """  # fmt: skip  # noqa: E501
        return
    channels = "C, K / groups" if kind.transposed else "K, C / groups"
    shapes = {
        "input": f"(N, C, {_SPATIAL[kind.rank]})",
        "weight": f"({channels}, {_KERNEL[kind.rank]})",
    }
    (other,) = shapes.keys() - {of}
    engines = {
        ("input", False): "dgrad, with or without ``ConvBwdData_``",
        ("weight", False): "wgrad, with or without ``ConvBwdFilter_``",
        ("input", True): "fprop, with or without ``ConvFwd_``",
        ("weight", True): "wgrad, with or without ``ConvBwdFilter_``",
    }[of, kind.transposed]
    gradient.__doc__ = f"""The gradient of :func:`{kind.function}` with respect to its {of}.

        Like torch.nn.grad's; arguments not listed here are as for :func:`{kind.function}`.

        Args:
            {of}_size: shape {shapes[of]} of the {of}.
            {other}: shape {shapes[other]}.
            grad_output: shape {output} of the output; same dtype and device as ``{other}``.
            policy: as for :func:`{kind.function}`; an engine's tag is one of {engines} in front.

        Returns:
            Shape {shapes[of]}.

        Raises:
            RuntimeError: as :func:`{kind.function}`.
        """


def _grad_input(
    kind: ConvolutionKind,
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
    function = f"{kind.function}_input"
    check_tensors(function, weight=weight, grad_output=grad_output)
    register_rules()
    size = size_of(kind, function, "input_size", input_size)
    steps, gaps = numbers(kind, "stride", stride), numbers(kind, "dilation", dilation)
    pads, surplus = padding_and_surplus(kind, function, weight.shape, steps, padding, gaps)
    padded = (*size[:2], *(length + end for length, end in zip(size[2:], surplus, strict=True)))
    grad_input: torch.Tensor = torch.ops.convtime.convolution_backward(
        grad_output,
        # One element, expanded, represents the input: as in PyTorch, only its size matters.
        grad_output.new_empty(1).expand(padded),
        weight,
        steps,
        pads,
        gaps,
        kind.transposed,
        numbers(kind, "output_padding", output_padding),
        groups,
        (True, False, False),
        policy=policy,
    )[0]
    for dim, end in enumerate(surplus, start=2):
        if end:
            grad_input = grad_input.narrow(dim, 0, size[dim])
    return grad_input


def _grad_weight(
    kind: ConvolutionKind,
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
    function = f"{kind.function}_weight"
    check_tensors(function, input=input, grad_output=grad_output)
    register_rules()
    size = size_of(kind, function, "weight_size", weight_size)
    steps, gaps = numbers(kind, "stride", stride), numbers(kind, "dilation", dilation)
    pads, surplus = padding_and_surplus(kind, function, size, steps, padding, gaps)
    grad_weight: torch.Tensor = torch.ops.convtime.convolution_backward(
        grad_output,
        pad_end(input, surplus),
        grad_output.new_empty(1).expand(size),
        steps,
        pads,
        gaps,
        kind.transposed,
        numbers(kind, "output_padding", output_padding),
        groups,
        (False, True, False),
        policy=policy,
    )[1]
    return grad_weight


_CONV1D, _CONV2D, _CONV3D, _CONV_TRANSPOSE1D, _CONV_TRANSPOSE2D, _CONV_TRANSPOSE3D = KINDS

conv1d_input, conv1d_weight, conv1d_bias = (
    _input_gradient(_CONV1D), _weight_gradient(_CONV1D), _bias_gradient(_CONV1D)
)  # fmt: skip
conv2d_input, conv2d_weight, conv2d_bias = (
    _input_gradient(_CONV2D), _weight_gradient(_CONV2D), _bias_gradient(_CONV2D)
)  # fmt: skip
conv3d_input, conv3d_weight, conv3d_bias = (
    _input_gradient(_CONV3D), _weight_gradient(_CONV3D), _bias_gradient(_CONV3D)
)  # fmt: skip
conv_transpose1d_input = _transposed_input_gradient(_CONV_TRANSPOSE1D)
conv_transpose1d_weight = _transposed_weight_gradient(_CONV_TRANSPOSE1D)
conv_transpose2d_input = _transposed_input_gradient(_CONV_TRANSPOSE2D)
conv_transpose2d_weight = _transposed_weight_gradient(_CONV_TRANSPOSE2D)
conv_transpose3d_input = _transposed_input_gradient(_CONV_TRANSPOSE3D)
conv_transpose3d_weight = _transposed_weight_gradient(_CONV_TRANSPOSE3D)
