"""Figure of compared layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from convtime.timing.plot import Spread, times_and_ratios
from convtime.view.figure import Figure, labels
from convtime.view.wording import counted

if TYPE_CHECKING:
    from convtime.conv.compare import LayerResult
    from convtime.timing.measurement import Measurement

BAND = 0.03


def layers_figure(results: Sequence[LayerResult], title: str) -> Figure:
    """Draw both medians of each layer with their quartiles, and the ratio with its interval.

    Args:
        results: results of at least one layer.
        title: description of the measurement conditions.
    """
    different = sum(not result.bit_identical for result in results)
    return Figure(
        title=title,
        description=(
            f"Times of {counted(len(results), 'layer')} in PyTorch and in convtime, and their "
            f"ratios; {different} of the results are not bit-identical."
        ),
        view=times_and_ratios(
            labels(map(_title, results)),
            {
                "PyTorch": [_spread(result.pytorch) for result in results],
                "convtime": [_spread(result.convtime) for result in results],
            },
            [result.ratio for result in results],
            BAND,
            "convtime / PyTorch",
        ),
        key=f"dot: median; bars: quartiles; ratios with 95 % interval; band: ± {BAND:.0%}",
    )


def _title(result: LayerResult) -> str:
    return result.title if result.bit_identical else f"{result.title}, NOT BIT-IDENTICAL"


def _spread(measured: Measurement) -> Spread:
    # The median accounts for the clock's tick, but quantiles do not: it may be outside them.
    return Spread(
        measured.median,
        min(measured.median, measured.quantile(0.25)),
        max(measured.median, measured.quantile(0.75)),
    )
