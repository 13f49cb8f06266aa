"""A convolution as data: sizes and parameters, whatever its dtype and its tensors' layouts.

Imports nothing compiled: the child of convtime.conv.plan_oracle loads it without convtime's core.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NoReturn

from convtime.core.dimensions import per_dimension
from convtime.core.errors import InputError
from convtime.core.kinds import ConvolutionKind

# PyTorch's own kernels index the sizes of a dimension with 32 bits in many places.
LARGEST_SIZE = 2**31 - 1
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
# What the spatial dimensions are called, by how many there are.
_AXES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
# Parameters with a number for each spatial dimension, and what that is by default.
_USUAL = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}


@dataclasses.dataclass(frozen=True)
class CudnnProblem:
    """A convolution y = conv(x, w) as cuDNN is told of it."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """One convolution.

    It has one to three spatial dimensions; a transposed one is torch's conv_transpose, the gradient
    of a convolution as an operation of its own.

    Attributes:
        batch: Examples a call, N; 0 makes an empty call.
        in_channels: C.
        size: Of the input's spatial dimensions, e.g. (height, width) in pixels.
        out_channels: K.
        kernel_size: One number a spatial dimension, the last one's last, or one for all; so are
            stride, padding and dilation.
        stride: 1 everywhere unless given.
        padding: On each side, 0 everywhere unless given; or "same".
        dilation: 1 everywhere unless given.
        groups: Divides C and K.
        bias: Whether there is one, of shape (K,).
        padding_mode: As torch.nn's layers have it, a member of PADDING_MODES.
        transposed: Whether it is a transposed convolution.
        output_padding: Of a transposed one, 0 everywhere unless given.

    Raises:
        InputError: The numbers do not make a convolution.
    """

    batch: int
    in_channels: int
    size: tuple[int, ...]
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    bias: bool = False
    padding_mode: str = "zeros"
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rank not in _AXES:
            _refuse(f"size is {self.size}, but must be one, two or three numbers")
        _check_size("batch", self.batch, smallest=0)
        for name in ("in_channels", "out_channels", "groups"):
            _check_size(name, getattr(self, name), smallest=1)
        for axis, size in zip(_AXES[self.rank], self.size, strict=True):
            _check_size(axis, size, smallest=1)
        for name, usual in _USUAL.items():
            self._complete(name, usual)
        if self.padding == "same" and self.stride != (1,) * self.rank:
            _refuse(f"padding 'same' needs stride 1, not {self.stride}")
        if self.padding_mode not in PADDING_MODES:
            _refuse(f"padding_mode is {self.padding_mode!r}, but must be one of {PADDING_MODES}")
        for name in ("in_channels", "out_channels"):
            channels = getattr(self, name)
            if channels % self.groups:
                _refuse(f"{name} ({channels}) is not a multiple of groups ({self.groups})")
        self._check_kind()
        for dim, axis in enumerate(_AXES[self.rank]):
            if self.output_size[dim] < 1:
                _refuse(self._why_no_output(dim, axis))

    def _complete(self, name: str, usual: int) -> None:
        """Checks a parameter of every dimension, and fills it in where it is not given."""
        given = getattr(self, name)
        if isinstance(given, str):
            if name != "padding" or given != "same":
                _refuse(f"{name} is {given!r}, but must be {self.rank} number(s) or 'same'")
            return
        numbers = per_dimension(given or (usual,), self.rank)
        if len(numbers) != self.rank:
            _refuse(f"{name} is {numbers}, but must be {self.rank} number(s), as size is")
        for axis, number in zip(_AXES[self.rank], numbers, strict=True):
            _check_size(f"{name} ({axis})", number, smallest=usual)
        object.__setattr__(self, name, numbers)

    def _check_kind(self) -> None:
        """What only a transposed convolution may have, and what only another."""
        if not self.transposed:
            if any(self.output_padding):
                _refuse(
                    f"output_padding is {self.output_padding}, but only a transposed one has any"
                )
            return
        if isinstance(self.padding, str) or self.padding_mode != "zeros":
            _refuse("a transposed one has no padding but zeros, given in numbers")
        for extra, stride, dilation in zip(
            self.output_padding, self.stride, self.dilation, strict=True
        ):
            # PyTorch computes an empty batch whatever the output_padding is.
            if extra >= max(stride, dilation) and self.batch > 0:
                _refuse(
                    f"output_padding is {self.output_padding}, but must be below stride "
                    f"{self.stride} or dilation {self.dilation}"
                )

    def _why_no_output(self, dim: int, axis: str) -> str:
        if self.transposed:
            return f"its padding leaves nothing of the output's {axis}"
        return (
            f"the kernel spans {self._kernel_span(dim)} pixels of {axis}, more than the "
            f"{self._padded_size(dim)} of the padded input"
        )

    def _kernel_span(self, dim: int) -> int:
        return self.dilation[dim] * (self.kernel_size[dim] - 1) + 1

    def _padded_size(self, dim: int) -> int:
        if isinstance(self.padding, str):
            return self.size[dim] + self._kernel_span(dim) - 1
        return self.size[dim] + 2 * self.padding[dim]

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.size)

    @property
    def kind(self) -> ConvolutionKind:
        """Which of the six convolutions it is."""
        return ConvolutionKind(self.rank, self.transposed)

    @property
    def output_size(self) -> tuple[int, ...]:
        """Of the output's spatial dimensions."""
        return tuple(map(self._output_size, range(self.rank)))

    def _output_size(self, dim: int) -> int:
        span = self._kernel_span(dim)
        if self.transposed:
            assert not isinstance(self.padding, str)
            grown = (self.size[dim] - 1) * self.stride[dim] + span
            return grown - 2 * self.padding[dim] + self.output_padding[dim]
        return (self._padded_size(dim) - span) // self.stride[dim] + 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(N, C, *spatial)."""
        return self.batch, self.in_channels, *self.size

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N, K, *spatial)."""
        return self.batch, self.out_channels, *self.output_size

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(K, C / groups, *kernel_size); transposed (C, K / groups, *kernel_size)."""
        first, second = self.out_channels, self.in_channels
        if self.transposed:
            first, second = second, first
        return first, second // self.groups, *self.kernel_size

    @property
    def flops(self) -> int:
        """Floating-point operations of one pass: two a multiply-add, none for bias."""
        # Each element on the side that the kernel is laid at meets each of the kernel's elements.
        elements = math.prod(self.input_shape if self.transposed else self.output_shape)
        return 2 * elements * math.prod(self.weight_shape[1:])

    @property
    def label(self) -> str:
        """Short for tables: N×C×spatial → K, kernel, and what differs from the default."""
        parts = [
            f"{'×'.join(map(str, self.input_shape))} → {self.out_channels},"
            f" {'×'.join(map(str, self.kernel_size))}"
        ]
        if self.transposed:
            parts.append("transposed")
        for sign, value, default in (
            ("s", self.stride, (1,) * self.rank),
            ("p", self.padding, (0,) * self.rank),
            ("d", self.dilation, (1,) * self.rank),
            ("o", self.output_padding, (0,) * self.rank),
            ("g", self.groups, 1),
            ("", self.padding_mode, "zeros"),
        ):
            if value == default:
                continue
            if isinstance(value, tuple):
                value = value[0] if len(set(value)) == 1 else "×".join(map(str, value))
            parts.append(f"{sign}{value}")
        if self.bias:
            parts.append("bias")
        return " ".join(parts)

    def cudnn_problem(self) -> CudnnProblem:
        """The convolution y = conv(x, w) that cuDNN is told of; padding must be numbers.

        Of a transposed one, PyTorch hands cuDNN the convolution that it is the gradient of: its
        output is that one's x. One spatial dimension becomes two, the first of size 1.
        """
        assert not isinstance(self.padding, str)
        x, y = self.input_shape, self.output_shape
        if self.transposed:
            x, y = y, x

        def widened(sizes: tuple[int, ...], first: int) -> tuple[int, ...]:
            return sizes if self.rank > 1 else (*sizes[:-1], first, sizes[-1])

        return CudnnProblem(
            x=widened(x, 1),
            w=widened(self.weight_shape, 1),
            y=widened(y, 1),
            stride=widened(self.stride, 1),
            padding=widened(self.padding, 0),
            dilation=widened(self.dilation, 1),
        )


def _refuse(why: str) -> NoReturn:
    raise InputError(why)


def _check_size(what: str, size: int, *, smallest: int) -> None:
    if not smallest <= size <= LARGEST_SIZE:
        _refuse(f"{what} is {size}, but must be between {smallest} and {LARGEST_SIZE}")


@dataclasses.dataclass(frozen=True)
class ConvLayer:
    """A problem, and where it occurs.

    Attributes:
        names: Every place, e.g. module names of a model; at least one.
        problem: The convolution, of at least one example.
    """

    names: tuple[str, ...]
    problem: ConvProblem

    def __post_init__(self) -> None:
        if not self.names:
            _refuse("a layer needs at least one name")
        _check_size("batch", self.problem.batch, smallest=1)

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]

    @property
    def count(self) -> int:
        """How often the problem occurs."""
        return len(self.names)


def distinct(layers: Iterable[ConvLayer]) -> list[ConvLayer]:
    """Each problem once, in order of first appearance, with the names of all its occurrences."""
    names: dict[ConvProblem, list[str]] = {}
    for layer in layers:
        names.setdefault(layer.problem, []).extend(layer.names)
    return [ConvLayer(tuple(found), problem) for problem, found in names.items()]
