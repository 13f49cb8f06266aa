"""Plot of compared layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from convtime.core.plot import COLORS, file_content, new_figure
from convtime.core.text import printable

if TYPE_CHECKING:
    from convtime.conv.compare import LayerResult

BAND = (0.97, 1.03)


def draw(results: Sequence[LayerResult], title: str, suffix: str) -> bytes:
    """Draw both medians of each layer, and their ratio with its interval below.

    Error bars on a median span the quartiles. No display is needed.

    Args:
        results: results of at least one layer.
        title: description of the measurement conditions.
        suffix: suffix of the file, which determines its type: ".png", ".svg", …

    Returns:
        Content of the plot's file.
    """
    width = min(40.0, max(8.0, 0.32 * len(results) + 2))  # inches
    figure = new_figure(width, 6.2)
    times, ratios = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))

    places = range(len(results))
    for who, shift in (("PyTorch", -0.15), ("convtime", 0.15)):
        measurements = [
            result.pytorch if who == "PyTorch" else result.convtime for result in results
        ]
        medians = [1e6 * measured.median for measured in measurements]
        # The median accounts for the clock's tick, but quantiles do not: it may be outside them.
        low = [
            max(0.0, 1e6 * (measured.median - measured.quantile(0.25))) for measured in measurements
        ]
        high = [
            max(0.0, 1e6 * (measured.quantile(0.75) - measured.median)) for measured in measurements
        ]
        times.errorbar(
            [place + shift for place in places],
            medians,
            yerr=(low, high),
            fmt="o",
            markersize=4,
            capsize=2.5,
            color=COLORS[who],
            label=who,
        )
    times.set_yscale("log")
    for axis_formatter in (times.yaxis.set_major_formatter, times.yaxis.set_minor_formatter):
        axis_formatter("{x:g}")  # 60, not 6 × 10¹
    times.set_ylabel("time (µs): median, quartiles")
    times.grid(axis="y", which="both", alpha=0.25)
    times.legend(loc="best")
    times.set_title(title, fontsize=10)

    values = [result.ratio.value for result in results]
    ends = [
        end
        for result in results
        for end in (result.ratio.value, result.ratio.low, result.ratio.high)
        if math.isfinite(end)  # unbounded with few samples
    ]
    # Always show the band and a margin; otherwise noise of 0.1 % would fill the plot.
    bottom, top = min([0.95, *ends]) - 0.01, max([1.05, *ends]) + 0.01
    below = [max(0.0, result.ratio.value - max(result.ratio.low, bottom)) for result in results]
    above = [max(0.0, min(result.ratio.high, top) - result.ratio.value) for result in results]
    ratios.axhspan(*BAND, color="#009E73", alpha=0.15, label=f"{BAND[0]} to {BAND[1]}")
    ratios.axhline(1, color="grey", linewidth=0.8)
    ratios.errorbar(
        places,
        values,
        yerr=(below, above),
        fmt="o",
        markersize=4,
        capsize=2.5,
        color=COLORS["convtime"],
    )
    different = [place for place in places if not results[place].bit_identical]
    if different:
        ratios.plot(
            different,
            [values[place] for place in different],
            "x",
            markersize=11,
            color="black",
            label="not bit-identical",
        )
    ratios.set_ylim(bottom, top)
    ratios.set_ylabel("convtime / PyTorch")
    ratios.grid(axis="y", alpha=0.25)
    ratios.legend(loc="best", fontsize=8)
    labels = [printable(result.title) for result in results]
    ratios.set_xticks(
        places,
        labels,
        rotation=60,
        ha="right",
        rotation_mode="anchor",
        fontsize=8,
        parse_math=False,  # a name may contain any character, including "$"
    )
    ratios.set_xlim(-0.6, len(results) - 0.4)
    return file_content(figure, suffix)
