"""The rates that a device reaches, which an operation's own are set against."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import msgspec

_Rate = Annotated[float, msgspec.Meta(gt=0)]


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What a device was seen to reach, at the clocks that it had then.

    Attributes:
        bytes_per_second: read and written by a large copy.
        flops_per_second: of a large square matmul of random numbers.
        matmul_dtype: its dtype.
    """

    bytes_per_second: _Rate
    flops_per_second: _Rate
    matmul_dtype: str

    def __str__(self) -> str:
        return (
            f"copy {self.bytes_per_second / 1e9:,.0f} GB/s, {self.matmul_dtype} matmul "
            f"{self.flops_per_second / 1e12:,.3g} TFLOP/s"
        )
