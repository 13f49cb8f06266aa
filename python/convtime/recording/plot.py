"""Plot of modules within a step and in isolation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from convtime.core.plot import COLORS, draw_estimate, figure_class
from convtime.core.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convtime.recording.module_times import ModuleTimes


def modules_figure(timed: ModuleTimes) -> Figure:
    """Draw each module pass's time within a step and in isolation, and the ratio.

    Raises:
        InputError: matplotlib is missing.
    """
    passes = timed.passes
    figure: Figure = figure_class()(
        figsize=(9, 1.4 + 0.25 * len(passes)), dpi=130, layout="constrained"
    )
    times, ratios = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    for place, each in enumerate(passes):
        draw_estimate(times, each.median, each.median_interval, place - 0.15, "PyTorch")
        if each.isolated is not None:
            alone = each.isolated
            draw_estimate(times, alone.median, alone.median_interval, place + 0.15, "convtime")
        if each.ratio is not None:
            ratios.plot(each.ratio.value, place, "o", color="black", markersize=4)
            if math.isfinite(each.ratio.high):
                ends = (each.ratio.low, each.ratio.high)
                ratios.plot(ends, (place, place), color=COLORS["convtime"])
    for who, label in (("PyTorch", "in place"), ("convtime", "isolated")):
        times.plot([], [], "o", color=COLORS[who], markersize=4, label=label)
    times.set_xscale("log")
    times.set_xlabel(f"{timed.method} time of a step (µs)", fontsize=8)
    ratios.axvspan(1 - timed.margin, 1 + timed.margin, color="#009E73", alpha=0.15)
    ratios.axvline(1, color="grey", linewidth=0.8)
    ratios.set_xlabel("in place / isolated", fontsize=8)
    labels = [printable(f"{each.module or 'the model'} {each.direction}") for each in passes]
    times.set_yticks(range(len(passes)), labels, fontsize=7, parse_math=False)
    times.invert_yaxis()
    times.legend(loc="best", fontsize=7)
    for axis in (times, ratios):
        axis.grid(axis="x", alpha=0.25)
    return figure
