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
    """

    rank: int
    transposed: bool

    @property
    def function(self) -> str:
        """Its name among functions and ops, e.g. "conv_transpose2d"."""
        return f"conv{'_transpose' if self.transposed else ''}{self.rank}d"

    @property
    def layer(self) -> str:
        """Its name among the classes of torch.nn, e.g. "ConvTranspose2d"."""
        return f"Conv{'Transpose' if self.transposed else ''}{self.rank}d"


KINDS = tuple(
    ConvolutionKind(rank, transposed) for transposed in (False, True) for rank in (1, 2, 3)
)
