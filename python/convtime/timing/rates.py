"""A device's attainable rates, for comparison with the rates of an operation."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import msgspec

_Rate = Annotated[float, msgspec.Meta(gt=0)]


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """Rates that a device attained at its clocks during the measurement.

    Attributes:
        bytes_per_second: bytes read and written by a large copy, per second.
        flops_per_second: rate of a large square matmul of random values.
        matmul_dtype: dtype of that matmul.
    """

    bytes_per_second: _Rate
    flops_per_second: _Rate
    matmul_dtype: str

    def __str__(self) -> str:
        return (
            f"copy {self.bytes_per_second / 1e9:,.0f} GB/s, {self.matmul_dtype} matmul "
            f"{self.flops_per_second / 1e12:,.3g} TFLOP/s"
        )
