"""A convolution as data: sizes and parameters, independent of dtype and tensor layouts."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.core.kinds import ConvolutionKind, kind_of, per_dimension

# PyTorch's own kernels index the sizes of a dimension with 32 bits in many places.
LARGEST_SIZE = 2**31 - 1
#: The passes of a layer; the backward pass computes the gradients of input, weight and bias.
PASSES = FORWARD, BACKWARD = ("forward", "backward")
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
# Names of the spatial dimensions, by their number.
_AXES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
# Parameters with one value per spatial dimension, and their defaults.
_USUAL = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """One convolution.

    It has one to three spatial dimensions. A transposed one is torch's conv_transpose: the gradient
    of a convolution as a separate operation.

    Attributes:
        batch: Number of examples per call, N; 0 makes an empty call.
        in_channels: Number of input channels, C.
        size: Sizes of the input's spatial dimensions, e.g. (height, width) in pixels.
        out_channels: Number of output channels, K.
        kernel_size: One number per spatial dimension, in the order of size, or one for all
            dimensions. The same holds for stride, padding and dilation.
        stride: 1 by default.
        padding: Padding on each side, 0 by default; or "same".
        dilation: 1 by default.
        groups: Number of groups; divides C and K.
        bias: Whether there is a bias, of shape (K,).
        padding_mode: As in torch.nn's layers, a member of PADDING_MODES.
        transposed: Whether it is a transposed convolution.
        output_padding: For a transposed convolution, 0 by default.

    Raises:
        InputError: The numbers do not define a convolution.
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
        require(self.rank in _AXES, f"size is {self.size}, but must be one, two or three numbers")
        _check_size("batch", self.batch, smallest=0)
        for name in ("in_channels", "out_channels", "groups"):
            _check_size(name, getattr(self, name), smallest=1)
        for axis, size in zip(_AXES[self.rank], self.size, strict=True):
            _check_size(axis, size, smallest=1)
        for name, usual in _USUAL.items():
            self._complete(name, usual)
        require(
            self.padding != "same" or self.stride == (1,) * self.rank,
            f"padding 'same' needs stride 1, not {self.stride}",
        )
        require(
            self.padding_mode in PADDING_MODES,
            f"padding_mode is {self.padding_mode!r}, but must be one of {PADDING_MODES}",
        )
        for name in ("in_channels", "out_channels"):
            channels = getattr(self, name)
            require(
                channels % self.groups == 0,
                f"{name} ({channels}) is not a multiple of groups ({self.groups})",
            )
        self._check_kind()
        for dim, axis in enumerate(_AXES[self.rank]):
            if self._output_size(dim) < 1:
                raise InputError(self._why_no_output(dim, axis))

    @classmethod
    def of_sizes(
        cls,
        input_shape: Sequence[int],
        weight_shape: Sequence[int],
        *,
        groups: int = 1,
        transposed: bool = False,
        **parameters: Any,
    ) -> ConvProblem:
        """Return the convolution of an input and a weight with these shapes.

        Args:
            input_shape: (N, C, *spatial).
            weight_shape: See the property.
            groups: See the attribute.
            transposed: See the attribute.
            parameters: Stride, padding, dilation, output_padding and bias.

        Raises:
            InputError: The sizes do not define a convolution.
        """
        first, second, *kernel_size = weight_shape
        batch, in_channels, *size = input_shape
        return cls(
            batch=batch,
            in_channels=in_channels,
            size=tuple(size),
            out_channels=second * groups if transposed else first,
            kernel_size=tuple(kernel_size),
            groups=groups,
            transposed=transposed,
            **parameters,
        )

    def _complete(self, name: str, usual: int) -> None:
        """Check a parameter that has a value per dimension, and fill in its default."""
        given = getattr(self, name)
        if isinstance(given, str):
            require(
                name == "padding" and given == "same",
                f"{name} is {given!r}, but must be {self.rank} number(s) or 'same'",
            )
            return
        numbers = tuple(map(operator.index, per_dimension(given or (usual,), self.rank)))
        require(
            len(numbers) == self.rank,
            f"{name} is {numbers}, but must be {self.rank} number(s), as size is",
        )
        for axis, number in zip(_AXES[self.rank], numbers, strict=True):
            _check_size(f"{name} ({axis})", number, smallest=usual)
        object.__setattr__(self, name, numbers)

    def _check_kind(self) -> None:
        """Check the parameters that depend on whether the convolution is transposed."""
        if not self.transposed:
            require(
                not any(self.output_padding),
                f"output_padding is {self.output_padding}, but needs a transposed convolution",
            )
            return
        require(
            not isinstance(self.padding, str) and self.padding_mode == "zeros",
            "a transposed convolution takes only padding with zeros, given in numbers",
        )
        limits = map(max, self.stride, self.dilation)
        # For an empty batch, PyTorch accepts any output_padding.
        require(
            self.batch == 0 or all(map(operator.lt, self.output_padding, limits)),
            f"output_padding is {self.output_padding}, but must be below stride "
            f"{self.stride} or dilation {self.dilation}",
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
        """The kind of convolution, one of six."""
        return kind_of(self.rank, self.transposed)

    @property
    def output_size(self) -> tuple[int, ...]:
        """Sizes of the output's spatial dimensions."""
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
        """Floating-point operations of one pass: two per multiply-add, none for the bias."""
        # Every element of the output, or of the input if transposed, uses the whole kernel once.
        elements = math.prod(self.input_shape if self.transposed else self.output_shape)
        return 2 * elements * math.prod(self.weight_shape[1:])

    @property
    def label(self) -> str:
        """Short form for tables: N×C×spatial → K, kernel, and all non-default parameters."""
        parts = [
            f"{'×'.join(map(str, self.input_shape))} → {self.out_channels},"
            f" {'×'.join(map(str, self.kernel_size))}"
        ]
        if self.transposed:
            parts.append("transposed")
        parts += [
            f"{sign}{join_numbers(value, '×')}"
            for sign, value, default in (
                ("s", self.stride, (1,) * self.rank),
                ("p", self.padding, (0,) * self.rank),
                ("d", self.dilation, (1,) * self.rank),
                ("o", self.output_padding, (0,) * self.rank),
                ("g", (self.groups,), (1,)),
                ("", self.padding_mode, "zeros"),
            )
            if value != default
        ]
        if self.bias:
            parts.append("bias")
        return " ".join(parts)

    def with_height(self) -> ConvProblem:
        """Return the problem with a height of 1 if it has only a length, as it is passed to cuDNN.

        Padding must be numeric.
        """
        assert not isinstance(self.padding, str)
        if self.rank > 1:
            return self
        return dataclasses.replace(
            self,
            size=(1, *self.size),
            kernel_size=(1, *self.kernel_size),
            stride=(1, *self.stride),
            padding=(0, *self.padding),
            dilation=(1, *self.dilation),
            output_padding=(0, *self.output_padding),
        )

    def cudnn_problem(self) -> ConvProblem:
        """Return the convolution y = conv(x, w) that is passed to cuDNN; padding must be numeric.

        For a transposed convolution, PyTorch passes cuDNN the convolution whose gradient it
        computes, so the output becomes x. One spatial dimension becomes two, the first of size 1.
        """
        problem = self.with_height()
        if not self.transposed:
            return problem
        return dataclasses.replace(
            problem,
            in_channels=self.out_channels,
            size=problem.output_size,
            out_channels=self.in_channels,
            transposed=False,
            output_padding=(),
        )


def join_numbers(numbers: tuple[int, ...] | str, sign: str) -> str:
    """Join the numbers of a parameter; one is enough if they are equal, and a name stays."""
    if isinstance(numbers, str):
        return numbers
    return sign.join(map(str, numbers[:1] if len(set(numbers)) == 1 else numbers))


def _check_size(what: str, size: int, *, smallest: int) -> None:
    require(
        smallest <= size <= LARGEST_SIZE,
        f"{what} is {size}, but must be between {smallest} and {LARGEST_SIZE}",
    )


@dataclasses.dataclass(frozen=True)
class ConvLayer:
    """A problem and the places where it occurs.

    Attributes:
        names: All places, e.g. module names of a model; at least one.
        problem: The convolution, with at least one example.
    """

    names: tuple[str, ...]
    problem: ConvProblem

    def __post_init__(self) -> None:
        require(self.names, "a layer needs at least one name")
        _check_size("batch", self.problem.batch, smallest=1)

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]

    @property
    def count(self) -> int:
        """The number of times that the problem occurs."""
        return len(self.names)

    def title(self, pass_name: str = FORWARD) -> str:
        """Return the name, followed by the pass if it is not the forward pass."""
        return self.name if pass_name == FORWARD else f"{self.name} {pass_name}"


def distinct(layers: Iterable[ConvLayer]) -> list[ConvLayer]:
    """Return each problem once, in order of first appearance, with the names of all its places."""
    names: dict[ConvProblem, list[str]] = {}
    for layer in layers:
        names.setdefault(layer.problem, []).extend(layer.names)
    return [ConvLayer(tuple(places), problem) for problem, places in names.items()]
