"""The table of the six convolutions, from which functions, layers and checks are generated.

No compiled imports: the child process of convtime.conv.plan_oracle loads this module without
convtime's core.
"""

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
    """

    rank: int
    transposed: bool
    # Stored, not computed on access: torch.compile may treat the rank as a symbol.
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
