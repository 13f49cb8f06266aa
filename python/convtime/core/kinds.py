"""The table of the six convolutions, from which functions, layers and checks are made.

Imports nothing compiled: the child of convtime.conv.plan_oracle loads it without convtime's core.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ConvolutionKind:
    """One of PyTorch's convolutions.

    Attributes:
        rank: the number of spatial dimensions, 1 to 3.
        transposed: whether it is a transposed one.
        function: its name among functions and ops, e.g. "conv_transpose2d".
        layer: its name among the classes of torch.nn, e.g. "ConvTranspose2d".
    """

    rank: int
    transposed: bool
    # Kept, and not made when asked for: torch.compile may take the rank for a symbol.
    function: str = dataclasses.field(init=False)
    layer: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        function = f"conv{'_transpose' if self.transposed else ''}{self.rank}d"
        object.__setattr__(self, "function", function)
        layer = f"Conv{'Transpose' if self.transposed else ''}{self.rank}d"
        object.__setattr__(self, "layer", layer)


KINDS = tuple(
    ConvolutionKind(rank, transposed) for transposed in (False, True) for rank in (1, 2, 3)
)
