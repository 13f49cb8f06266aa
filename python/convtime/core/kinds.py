"""The six convolutions, from which functions, layers and checks are generated; their parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

#: A parameter with one number per spatial dimension, or one for all.
Numbers = int | Sequence[int]


@dataclasses.dataclass(frozen=True)
class ConvolutionKind:
    """One of PyTorch's convolutions.

    Attributes:
        rank: number of spatial dimensions, 1 to 3.
        transposed: whether it is a transposed convolution.
        function: name of the function and op, e.g. "conv_transpose2d".
        layer: name of the torch.nn class, e.g. "ConvTranspose2d".
        numbers: names of the op's arguments after the bias, in order.
    """

    rank: int
    transposed: bool
    function: str
    layer: str
    numbers: tuple[str, ...]


KINDS = tuple(
    ConvolutionKind(rank, transposed, f"{function}{rank}d", f"{layer}{rank}d", numbers)
    for transposed, function, layer, numbers in (
        (False, "conv", "Conv", ("stride", "padding", "dilation", "groups")),
        (
            True,
            "conv_transpose",
            "ConvTranspose",
            ("stride", "padding", "output_padding", "groups", "dilation"),
        ),
    )
    for rank in (1, 2, 3)
)


def kind_of(rank: int, transposed: bool) -> ConvolutionKind:
    """Return the convolution with this number of spatial dimensions."""
    return KINDS[rank - 1 + 3 * transposed]


def per_dimension(given: Numbers, rank: int) -> tuple[int, ...]:
    """Return the numbers as a tuple; a single number applies to all ``rank`` spatial dimensions."""
    # Bytes are a sequence of ints in Python, but not a valid convolution argument.
    if isinstance(given, Sequence) and not isinstance(given, bytes | bytearray | memoryview):
        numbers = tuple(given)
    else:
        numbers = (given,)  # type: ignore[assignment]
    return numbers * rank if len(numbers) == 1 else numbers
