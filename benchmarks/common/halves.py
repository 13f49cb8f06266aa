"""An oracle that is chosen by one half of the samples and scored by the other."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convtime import Comparison


def medians_of_halves(compared: Comparison) -> list[dict[str, float]]:
    """The median of each candidate in each half of the batches.

    The halves take turns: the clock may drift.
    """
    batches = next(iter(compared.measurements.values())).batches
    return [
        {
            name: statistics.median(
                seconds
                for seconds, batch in zip(measured.seconds, batches, strict=True)
                if batch % 2 == half
            )
            for name, measured in compared.measurements.items()
        }
        for half in (0, 1)
    ]
