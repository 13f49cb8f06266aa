"""Plots of samples and of comparisons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.plot import COLORS, SMALL, microseconds, new_figure, scaled
from convtime.core.text import printable
from convtime.device.clock_reading import THROTTLED_BELOW, ClockReading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convtime.timing.comparison import Comparison
    from convtime.timing.measurement import Measurement
    from convtime.timing.verdict import Ratio


def sample_figure(measured: Measurement) -> Figure:
    """Draw every sample in order, discarded samples next to them, and the clocks.

    If known, the GPU's power during the run is drawn below.

    Raises:
        InputError: matplotlib is missing.
    """
    count, discarded = len(measured.seconds), len(measured.discarded)
    beside = discarded > 0
    rows: list[Any] = [["time", "discarded"][: 1 + beside]]
    if any(hz is not None for hz in measured.sm_clocks_hz):
        rows.append(["clock", "."][: 1 + beside])  # a discarded sample's clock is not kept
    if any(reading.power is not None for reading in measured.conditions):
        rows.append(["power"] * (1 + beside))
    figure: Figure = new_figure(8, 1.5 + 1.5 * len(rows))
    axes: dict[str, Any] = figure.subplot_mosaic(
        rows,
        height_ratios=(2, 1, 1)[: len(rows)],
        width_ratios=(max(count, discarded), max(discarded, count / 8)) if beside else (1,),
    )
    _draw_samples(axes["time"], measured)
    if beside:
        axes["discarded"].sharey(axes["time"])
        axes["discarded"].plot(range(discarded), microseconds(measured.discarded), "x", **SMALL)
        axes["discarded"].set_title(f"{discarded} discarded", fontsize=8)
    if "clock" in axes:
        axes["clock"].sharex(axes["time"])
        _draw_clocks(axes["clock"], measured)
    if "power" in axes:
        _draw_power(axes["power"], measured.conditions)
    for axis in axes.values():
        axis.grid(alpha=0.25)
    return figure


def _draw_clocks(axis: Any, measured: Measurement) -> None:
    clocks = scaled(measured.sm_clocks_hz, 1e-6)
    axis.plot(range(len(clocks)), clocks, ".", **SMALL)
    if measured.max_sm_clock_hz is not None:
        highest = 1e-6 * measured.max_sm_clock_hz
        axis.axhline(highest, linestyle=":", color="grey", label="highest clock")
        axis.legend(loc="best", fontsize=7)
    axis.set_ylabel("SM clock (MHz)", fontsize=8)


def _draw_power(axis: Any, readings: Sequence[ClockReading]) -> None:
    known = [reading for reading in readings if reading.power is not None]
    axis.plot(
        [reading.seconds for reading in known],
        [reading.power for reading in known],
        color=COLORS["convtime"],
    )
    axis.set_ylabel("power (W)", fontsize=8)
    axis.set_xlabel("seconds, from before the first call until after the last", fontsize=8)


def _draw_samples(axis: Any, measured: Measurement) -> None:
    axis.plot(range(len(measured.seconds)), microseconds(measured.seconds), ".", **SMALL)
    throttled = [place for place, is_so in enumerate(measured.throttled) if is_so]
    if throttled:
        times = microseconds(measured.seconds[place] for place in throttled)
        told = f"below {THROTTLED_BELOW:.0%} of the highest clock"
        axis.plot(throttled, times, "+", color=COLORS["PyTorch"], label=told)
    low, high = microseconds(measured.median_interval)
    if math.isfinite(low) and math.isfinite(high):
        axis.axhspan(low, high, color="grey", alpha=0.3, label="95 % interval of the median")
    axis.axhline(1e6 * measured.median, color="black", linewidth=0.8, label="median")
    for place, (before, after) in enumerate(itertools.pairwise(measured.batches), start=1):
        if before != after:
            axis.axvline(place - 0.5, color="grey", linewidth=0.4, alpha=0.5)
    if 0 < 10 * min(measured.seconds) < max(measured.seconds):
        axis.set_yscale("log")
    axis.set_ylabel("time (µs)", fontsize=8)
    axis.set_xlabel("sample", fontsize=8)
    axis.set_title(printable(measured.name), fontsize=9, parse_math=False)
    axis.legend(loc="best", fontsize=7)


def comparison_figure(compared: Comparison) -> Figure:
    """Draw each candidate's times, and its ratio to the baseline with the interval.

    Raises:
        InputError: matplotlib is missing.
    """
    names = list(compared.measurements)
    labels = [_with_verdict(compared, name) for name in names]
    figure, times, ratios = times_and_ratios(labels, 0.4)
    for place, measured in enumerate(compared.measurements.values()):
        for span, width in ((0.98, 1), (0.5, 4)):
            ends = [1e6 * measured.quantile(0.5 + side * span / 2) for side in (-1, 1)]
            times.plot(ends, (place, place), color=COLORS["convtime"], linewidth=width)
        times.plot(1e6 * measured.median, place, "o", color="black", markersize=4)
    times.set_xlabel("time (µs): median, quartiles, 1 % to 99 %", fontsize=8)
    judged = {
        place: compared.ratio(name)
        for place, name in enumerate(names)
        if name != compared.baseline and math.isfinite(compared.ratio(name).value)
    }
    draw_ratios(ratios, judged, compared.margin)
    ratios.set_xlabel(f"ratio to {printable(compared.baseline)}", fontsize=8, parse_math=False)
    ratios.legend(loc="best", fontsize=7)
    return figure


def times_and_ratios(
    labels: Sequence[str], height: float, widths: tuple[int, int] = (1, 1)
) -> tuple[Figure, Any, Any]:
    """Return a figure with a panel for times and one for ratios, whose rows have labels.

    Args:
        labels: labels of the rows, from top to bottom.
        height: of a row, in inches.
        widths: relative widths of the panels.
    """
    figure: Figure = new_figure(9, 1.4 + height * len(labels))
    times, ratios = figure.subplots(1, 2, sharey=True, width_ratios=widths)
    times.set_yticks(range(len(labels)), labels, fontsize=8, parse_math=False)
    times.invert_yaxis()
    for axis in (times, ratios):
        axis.grid(axis="x", alpha=0.25)
    return figure, times, ratios


def draw_ratios(axis: Any, ratios: Mapping[int, Ratio], margin: float) -> None:
    """Draw the ratios of rows with their intervals, and the band in which times count as equal."""
    axis.axvspan(1 - margin, 1 + margin, color="#009E73", alpha=0.15, label=f"± {margin:.2%}")
    axis.axvline(1, color="grey", linewidth=0.8)
    for place, ratio in ratios.items():
        axis.plot(ratio.value, place, "o", color="black", markersize=4)
        if math.isfinite(ratio.low) and math.isfinite(ratio.high):
            axis.plot((ratio.low, ratio.high), (place, place), color=COLORS["convtime"])


def _with_verdict(compared: Comparison, name: str) -> str:
    if name == compared.baseline:
        return f"{printable(name)}\nbaseline"
    agreement = compared.same_results.get(name)
    other = "" if agreement is None or agreement.same is not False else ", OTHER RESULT"
    return f"{printable(name)}\n{compared.verdict(name)}{other}"
