"""The table of the six convolutions, from which functions, layers and checks are generated."""

from __future__ import annotations

import dataclasses


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
