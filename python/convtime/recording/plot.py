"""Plot of modules within a step and in isolation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from convtime.core.plot import COLORS, microseconds
from convtime.core.text import printable
from convtime.timing.plot import draw_ratios, times_and_ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convtime.recording.module_times import ModuleTimes


def modules_figure(timed: ModuleTimes) -> Figure:
    """Draw each module pass's time within a step and in isolation, and the ratio.

    Raises:
        InputError: matplotlib is missing.
    """
    passes = timed.passes
    labels = [printable(f"{each.module or 'the model'} {each.direction}") for each in passes]
    figure, times, ratios = times_and_ratios(labels, 0.25, widths=(2, 1))
    for place, each in enumerate(passes):
        _draw_estimate(times, each.median, each.median_interval, place - 0.15, "PyTorch")
        if each.isolated is not None:
            alone = each.isolated
            _draw_estimate(times, alone.median, alone.median_interval, place + 0.15, "convtime")
    for who, label in (("PyTorch", "in place"), ("convtime", "isolated")):
        times.plot([], [], "o", color=COLORS[who], markersize=4, label=label)
    times.set_xscale("log")
    times.set_xlabel(f"{timed.method} time of a step (µs)", fontsize=8)
    known = {place: each.ratio for place, each in enumerate(passes) if each.ratio is not None}
    draw_ratios(ratios, known, timed.margin)
    ratios.set_xlabel("in place / isolated", fontsize=8)
    times.legend(loc="best", fontsize=7)
    return figure


def _draw_estimate(
    axis: Any, value: float, interval: tuple[float, float], height: float, who: str
) -> None:
    if value > 0:  # the axis is logarithmic
        axis.plot(1e6 * value, height, "o", color=COLORS[who], markersize=4)
    if interval[0] > 0 and math.isfinite(interval[1]):
        axis.plot(microseconds(interval), (height, height), color=COLORS[who])
