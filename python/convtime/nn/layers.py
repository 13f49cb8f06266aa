"""Layers based on convtime's ops: drop-in PyTorch convolutions, and fused layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from convtime import ops
from convtime.core.checks import check_one_of
from convtime.core.kinds import Numbers
from convtime.ops.epilogue import ACTIVATIONS, Activation


def _conv_forward_by(conv: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Build the method that torch.nn's convolutions call; a mixin would cost more."""

    def _conv_forward(
        self: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        padding: Numbers | str = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return conv(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            policy=self.policy,
        )

    return _conv_forward


def _forward_by(conv_transpose: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def forward(
        self: Any, input: torch.Tensor, output_size: list[int] | None = None
    ) -> torch.Tensor:
        if self.padding_mode != "zeros":
            raise ValueError(
                f"{type(self).__name__}: padding_mode must be 'zeros', got {self.padding_mode!r}"
            )
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,
            self.padding,
            self.kernel_size,
            len(self.kernel_size),
            self.dilation,
        )
        return conv_transpose(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            output_padding,
            self.groups,
            self.dilation,
            policy=self.policy,
        )

    return forward


def _refuse_scripting(self: Any) -> NoReturn:
    """Raise the error that torch.jit.script reports before it compiles a layer."""
    name = type(self).__name__
    raise TypeError(
        f"torch.jit.script cannot compile convtime.nn.{name}, which calls convtime's ops; use "
        f"torch.nn.{name} (convtime.nn.restore undoes convtime.nn.replace), torch.jit.trace or "
        "torch.export"
    )


class _Convolution:
    """The members that all convolution layers have."""

    policy: str | None = None

    __prepare_scriptable__ = _refuse_scripting


class Conv1d(torch.nn.Conv1d, _Convolution):
    """Drop-in for :class:`torch.nn.Conv1d`, by :func:`convtime.ops.conv1d`; see :class:`Conv2d`."""

    _conv_forward = _conv_forward_by(ops.conv1d)


class Conv2d(torch.nn.Conv2d, _Convolution):
    """Drop-in for :class:`torch.nn.Conv2d`: same arguments, parameters and ``state_dict``.

    The convolution is :func:`convtime.ops.conv2d`.

    Attributes:
        policy: How cuDNN plans are selected, as for that function. None (default): follow
            ``torch.backends.cudnn.benchmark``. It is not part of the ``state_dict``.
    """

    _conv_forward = _conv_forward_by(ops.conv2d)


class Conv3d(torch.nn.Conv3d, _Convolution):
    """Drop-in for :class:`torch.nn.Conv3d`, by :func:`convtime.ops.conv3d`; see :class:`Conv2d`."""

    _conv_forward = _conv_forward_by(ops.conv3d)


class ConvTranspose1d(torch.nn.ConvTranspose1d, _Convolution):
    """Drop-in for :class:`torch.nn.ConvTranspose1d`; see :class:`ConvTranspose2d`."""

    forward = _forward_by(ops.conv_transpose1d)


class ConvTranspose2d(torch.nn.ConvTranspose2d, _Convolution):
    """Drop-in for :class:`torch.nn.ConvTranspose2d`: same arguments, parameters and ``state_dict``.

    The convolution is :func:`convtime.ops.conv_transpose2d`. ``forward`` takes ``output_size`` as
    PyTorch's does.

    Attributes:
        policy: As for :class:`Conv2d`.
    """

    forward = _forward_by(ops.conv_transpose2d)


class ConvTranspose3d(torch.nn.ConvTranspose3d, _Convolution):
    """Drop-in for :class:`torch.nn.ConvTranspose3d`; see :class:`ConvTranspose2d`."""

    forward = _forward_by(ops.conv_transpose3d)


class _ConvEpilogue(_Convolution, _ConvNd):
    """Common code of the layers below; the torch.nn convolution follows it in the base classes."""

    def __init__(
        self,
        *arguments: Any,
        activation: Activation = "relu",
        alpha: float = 1.0,
        negative_slope: float = 0.01,
        **options: Any,
    ) -> None:
        check_one_of(f"{type(self).__name__}: activation", activation, ACTIVATIONS)
        super().__init__(*arguments, **options)
        self.activation = activation
        self.alpha = alpha
        self.negative_slope = negative_slope

    def forward(self: Any, input: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        padding: Numbers | str = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        output: torch.Tensor = self._call(
            input,
            self.weight,
            self.bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            other=other,
            alpha=self.alpha,
            activation=self.activation,
            negative_slope=self.negative_slope,
            policy=self.policy,
        )
        return output

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"  # type: ignore[no-untyped-call]


class ConvEpilogue2d(_ConvEpilogue, torch.nn.Conv2d):
    """:class:`torch.nn.Conv2d`, the addition of a tensor, and an activation, in one layer.

    ``layer(input, other)`` is ``activation(conv(input) + alpha * other)``, and ``layer(input)`` is
    the same without ``other``, both by :func:`convtime.ops.conv2d_epilogue`. Arguments, parameters
    and ``state_dict`` are those of torch.nn.Conv2d, with these additional keyword arguments:

    Args:
        activation: as for conv2d_epilogue; ReLU by default.
        alpha: as for conv2d_epilogue.
        negative_slope: as for conv2d_epilogue.

    Attributes:
        policy: As for :class:`Conv2d`.
    """

    _call = staticmethod(ops.conv2d_epilogue)


class ConvEpilogue1d(_ConvEpilogue, torch.nn.Conv1d):
    """:class:`ConvEpilogue2d` for :class:`torch.nn.Conv1d`."""

    _call = staticmethod(ops.conv1d_epilogue)


class ConvEpilogue3d(_ConvEpilogue, torch.nn.Conv3d):
    """:class:`ConvEpilogue2d` for :class:`torch.nn.Conv3d`."""

    _call = staticmethod(ops.conv3d_epilogue)


class ReLUMaxPool2d(torch.nn.MaxPool2d):
    """:class:`torch.nn.ReLU` and :class:`torch.nn.MaxPool2d` in one; arguments as for MaxPool2d.

    The pooling is :func:`convtime.ops.relu_max_pool2d`.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return ops.relu_max_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )

    __prepare_scriptable__ = _refuse_scripting
