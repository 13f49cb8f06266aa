"""Plots of compared layers, samples, comparisons, sweeps, and a GPU's clocks over time."""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convtime.conv.compare import LayerResult
from convtime.core.errors import InputError, MissingPackageError, first_line
from convtime.results.clock_reading import ClockReading
from convtime.results.clock_trace import ClockTrace
from convtime.results.comparison import Comparison
from convtime.results.measurement import THROTTLED_BELOW, Measurement
from convtime.results.modules import ModuleTimes
from convtime.results.sweep import Sweep
from convtime.results.sweep_plan import ITERATIONS, Label, SweepPoint
from convtime.results.sweep_rows import TIME, summary, unit
from convtime.show.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which is suitable for color-blind readers.
COLOURS = {"PyTorch": "#D55E00", "convtime": "#0072B2"}
# Colors of applications, in order; from the same palette.
_SERIES = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BAND = (0.97, 1.03)
_LOGARITHMIC_FROM = 20  # ratio of the largest to the smallest value
_SMALL: dict[str, Any] = {"markersize": 3, "color": COLOURS["convtime"]}
FILE_TYPES = ("png", "svg", "pdf")  # matplotlib's types that need no other program


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "plots require matplotlib, which is not installed; run pip install 'convtime[plot]'"
        ) from error
    except Exception as error:  # matplotlib rejects broken settings
        raise InputError(
            f"plots require matplotlib, whose import raised {first_line(error)}; correct "
            "MPLBACKEND or matplotlibrc"
        ) from error

    class ShownFigure(Figure):
        """Figure that notebooks display; by default, they only display pyplot's figures."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", bbox_inches="tight")
            return content.getvalue()

    return ShownFigure


def check_plot(path: str | os.PathLike[str]) -> None:
    """Check before any timing that a plot of this file type can be drawn.

    Raises:
        InputError: matplotlib is missing, or the file type is unknown.
    """
    _figure_class()
    if _file_type(Path(path).suffix) not in FILE_TYPES:
        raise InputError(
            f"{path}: a plot's file name must end in one of "
            f"{', '.join(f'.{name}' for name in FILE_TYPES)}"
        )


def _file_type(suffix: str) -> str:
    return suffix.removeprefix(".").lower()


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
    # A separate Figure, not pyplot's: it always draws off-screen and leaves the user's state alone.
    width = min(40.0, max(8.0, 0.32 * len(results) + 2))  # inches
    figure = _figure_class()(figsize=(width, 6.2), dpi=130, layout="constrained")
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
            color=COLOURS[who],
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
        color=COLOURS["convtime"],
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

    picture = io.BytesIO()
    figure.savefig(picture, format=_file_type(suffix))
    return picture.getvalue()


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
    figure: Figure = _figure_class()(
        figsize=(8, 1.5 + 1.5 * len(rows)), dpi=130, layout="constrained"
    )
    axes: dict[str, Any] = figure.subplot_mosaic(
        rows,
        height_ratios=(2, 1, 1)[: len(rows)],
        width_ratios=(max(count, discarded), max(discarded, count / 8)) if beside else (1,),
    )
    _draw_samples(axes["time"], measured)
    if beside:
        axes["discarded"].sharey(axes["time"])
        axes["discarded"].plot(range(discarded), _microseconds(measured.discarded), "x", **_SMALL)
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
    clocks = [math.nan if hz is None else 1e-6 * hz for hz in measured.sm_clocks_hz]
    axis.plot(range(len(clocks)), clocks, ".", **_SMALL)
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
        color=COLOURS["convtime"],
    )
    axis.set_ylabel("power (W)", fontsize=8)
    axis.set_xlabel("seconds, from before the first call until after the last", fontsize=8)


def _draw_samples(axis: Any, measured: Measurement) -> None:
    axis.plot(range(len(measured.seconds)), _microseconds(measured.seconds), ".", **_SMALL)
    throttled = [place for place, is_so in enumerate(measured.throttled) if is_so]
    if throttled:
        times = _microseconds(measured.seconds[place] for place in throttled)
        told = f"below {THROTTLED_BELOW:.0%} of the highest clock"
        axis.plot(throttled, times, "+", color=COLOURS["PyTorch"], label=told)
    low, high = _microseconds(measured.median_interval)
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


def _microseconds(seconds: Iterable[float]) -> list[float]:
    return [1e6 * second for second in seconds]


def comparison_figure(compared: Comparison) -> Figure:
    """Draw each candidate's times, and its ratio to the baseline with the interval.

    Raises:
        InputError: matplotlib is missing.
    """
    names = list(compared.measurements)
    figure: Figure = _figure_class()(
        figsize=(9, 1.4 + 0.4 * len(names)), dpi=130, layout="constrained"
    )
    times, ratios = figure.subplots(1, 2, sharey=True)
    for place, measured in enumerate(compared.measurements.values()):
        for span, width in ((0.98, 1), (0.5, 4)):
            ends = [1e6 * measured.quantile(0.5 + side * span / 2) for side in (-1, 1)]
            times.plot(ends, (place, place), color=COLOURS["convtime"], linewidth=width)
        times.plot(1e6 * measured.median, place, "o", color="black", markersize=4)
    times.set_xlabel("time (µs): median, quartiles, 1 % to 99 %", fontsize=8)

    margin = compared.margin
    ratios.axvspan(1 - margin, 1 + margin, color="#009E73", alpha=0.15, label=f"± {margin:.2%}")
    ratios.axvline(1, color="grey", linewidth=0.8)
    for place, name in enumerate(names):
        ratio = compared.ratio(name)
        if name == compared.baseline or not math.isfinite(ratio.value):
            continue
        ratios.plot(ratio.value, place, "o", color="black", markersize=4)
        if math.isfinite(ratio.low) and math.isfinite(ratio.high):
            ratios.plot((ratio.low, ratio.high), (place, place), color=COLOURS["convtime"])
    ratios.set_xlabel(f"ratio to {printable(compared.baseline)}", fontsize=8, parse_math=False)
    ratios.legend(loc="best", fontsize=7)
    for axis in (times, ratios):
        axis.grid(axis="x", alpha=0.25)
    labels = [_with_verdict(compared, name) for name in names]
    times.set_yticks(range(len(names)), labels, fontsize=8, parse_math=False)
    times.invert_yaxis()
    return figure


def _with_verdict(compared: Comparison, name: str) -> str:
    if name == compared.baseline:
        return f"{printable(name)}\nbaseline"
    agreement = compared.same_results.get(name)
    other = "" if agreement is None or agreement.same is not False else ", OTHER RESULT"
    return f"{printable(name)}\n{compared.verdict(name)}{other}"


def modules_figure(timed: ModuleTimes) -> Figure:
    """Draw each module pass's time within a step and in isolation, and the ratio.

    Raises:
        InputError: matplotlib is missing.
    """
    passes = timed.passes
    figure: Figure = _figure_class()(
        figsize=(9, 1.4 + 0.25 * len(passes)), dpi=130, layout="constrained"
    )
    times, ratios = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    for place, each in enumerate(passes):
        _draw_estimate(times, each.median, each.median_interval, place - 0.15, "PyTorch")
        if each.isolated is not None:
            alone = each.isolated
            _draw_estimate(times, alone.median, alone.median_interval, place + 0.15, "convtime")
        if each.ratio is not None:
            ratios.plot(each.ratio.value, place, "o", color="black", markersize=4)
            if math.isfinite(each.ratio.high):
                ends = (each.ratio.low, each.ratio.high)
                ratios.plot(ends, (place, place), color=COLOURS["convtime"])
    for who, label in (("PyTorch", "in place"), ("convtime", "isolated")):
        times.plot([], [], "o", color=COLOURS[who], markersize=4, label=label)
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


def _draw_estimate(
    axis: Any, value: float, interval: tuple[float, float], height: float, who: str
) -> None:
    if value > 0:  # the axis is logarithmic
        axis.plot(1e6 * value, height, "o", color=COLOURS[who], markersize=4)
    if interval[0] > 0 and math.isfinite(interval[1]):
        axis.plot(_microseconds(interval), (height, height), color=COLOURS[who])


def clock_figure(trace: ClockTrace, times: Sequence[tuple[float, float]]) -> Figure:
    """Draw clock, power, temperature and throttle reasons over time, with iterations above.

    Args:
        trace: trace with at least one reading.
        times: start of each iteration relative to the trace's start, and its duration, in seconds;
            may be empty.

    Raises:
        InputError: matplotlib is missing.
    """
    reasons = sorted({why for reading in trace.readings for why in reading.throttle_reasons or ()})
    panels = {
        "time (µs)": bool(times),
        "SM clock (MHz)": True,
        "power (W)": True,
        "temperature (°C)": True,
        "throttled by": bool(reasons),
    }
    shown = [label for label, wanted in panels.items() if wanted]
    figure: Figure = _figure_class()(
        figsize=(8, 1 + 1.5 * len(shown)), dpi=130, layout="constrained"
    )
    axes = dict(zip(shown, figure.subplots(len(shown), 1, sharex=True), strict=True))
    if times:
        axes["time (µs)"].plot(
            [start for start, _ in times],
            [1e6 * duration for _, duration in times],
            ".",
            markersize=3,
            color=COLOURS["PyTorch"],
        )
    seconds = [reading.seconds for reading in trace.readings]
    for label, name, scale in (
        ("SM clock (MHz)", "sm_clock_hz", 1e-6),
        ("power (W)", "power", 1.0),
        ("temperature (°C)", "temperature", 1.0),
    ):
        values = [getattr(reading, name) for reading in trace.readings]
        axes[label].plot(
            seconds,
            [float("nan") if value is None else scale * value for value in values],
            color=COLOURS["convtime"],
        )
    if reasons:
        _draw_reasons(axes["throttled by"], trace, reasons)
    for label, axis in axes.items():
        axis.set_ylabel(label, fontsize=8)
        axis.grid(alpha=0.25)
    axes[shown[-1]].set_xlabel(f"seconds ({printable(trace.device)})", parse_math=False)
    return figure


def _draw_reasons(axis: Any, trace: ClockTrace, reasons: Sequence[str]) -> None:
    """Draw one line per reason, from each reading with that reason to the next reading."""
    starts = [reading.seconds for reading in trace.readings]
    ends = [*starts[1:], starts[-1]]
    for place, reason in enumerate(reasons):
        stretches = [
            (start, end - start)
            for start, end, reading in zip(starts, ends, trace.readings, strict=True)
            if reason in (reading.throttle_reasons or ())
        ]
        axis.broken_barh(stretches, (place - 0.3, 0.6), color=COLOURS["PyTorch"])
    labels = [printable(reason) for reason in reasons]
    axis.set_yticks(range(len(reasons)), labels, fontsize=7, parse_math=False)


def sweep_figure(
    swept: Sweep, x: str | None = None, quantities: Sequence[str] | None = None, kernel: str = ""
) -> Figure:
    """Draw each quantity over an axis, with a band from the smallest to the largest value.

    Args:
        swept: sweep to draw.
        x: name of the axis. Default: ``iterations`` if present, else the first numeric axis, else
            the first axis.
        quantities: ``time`` and metrics; None for all.
        kernel: short name of a kernel; empty for whole calls.

    Raises:
        InputError: an axis, quantity or kernel is unknown, the sweep has no measurements, or
            matplotlib is missing.
    """
    axes = swept.plan.axes
    x = _default_x(axes) if x is None else x
    if x not in axes:
        raise InputError(f"x must be one of the axes {', '.join(axes)}, got {x!r}")
    known = (TIME, *swept.metrics)
    wanted = known if quantities is None else tuple(quantities)
    for quantity in wanted:
        if quantity not in known:
            raise InputError(f"quantities must be from {', '.join(known)}, got {quantity!r}")
    if kernel and kernel not in swept.kernels:
        names = ", ".join(swept.kernels) or "none, since no kernels were recorded"
        raise InputError(f"kernel must be one of {names}, got {kernel!r}")
    if not (swept.measurements and wanted):
        raise InputError("a sweep must have at least one measurement to be drawn, got none")
    columns: dict[str, list[SweepPoint]] = {}
    for point in swept.points:
        others = [axis for axis, values in axes.items() if axis != x and len(values) > 1]
        title = ", ".join(f"{axis}={point.values[axis]}" for axis in others)
        columns.setdefault(title, []).append(point)
    figure: Figure = _figure_class()(
        figsize=(1 + 4 * len(columns), 0.8 + 3 * len(wanted)), dpi=130, layout="constrained"
    )
    panels = figure.subplots(len(wanted), len(columns), squeeze=False, sharex=True, sharey="row")
    for row, quantity in zip(panels, wanted, strict=True):
        for panel, points in zip(row, columns.values(), strict=True):
            _draw_quantity(panel, swept, points, x, (quantity, kernel))
        row[0].set_ylabel(_axis_label(swept, quantity), fontsize=8, parse_math=False)
        ends = [end for point in swept.points for end in _band(point, quantity, kernel)]
        if _is_wide([end for end in ends if not math.isnan(end)]):
            row[0].set_yscale("log")
    for panel, title in zip(panels[0], columns, strict=True):
        panel.set_title(printable(title), fontsize=9, parse_math=False)
    for panel in panels[-1]:
        panel.set_xlabel(printable(x), fontsize=8, parse_math=False)
    panels[0][0].legend(loc="best", fontsize=7, title="mean; min to max", title_fontsize=7)
    return figure


def draw_sweep(swept: Sweep, suffix: str) -> bytes:
    """Return the file content of :func:`sweep_figure`.

    Args:
        swept: sweep with at least one measurement.
        suffix: suffix of the file, which determines its type.
    """
    picture = io.BytesIO()
    sweep_figure(swept).savefig(picture, format=_file_type(suffix))
    return picture.getvalue()


def _default_x(axes: Mapping[str, Sequence[Label]]) -> str:
    if ITERATIONS in axes:
        return ITERATIONS
    of_numbers = (axis for axis, values in axes.items() if len(values) > 1 and _numbers(values))
    return next(of_numbers, next(iter(axes)))


def _numbers(values: Sequence[Label]) -> list[float]:
    """Return an axis's values if all are numbers; otherwise an empty list."""
    found = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return found if len(found) == len(values) else []


def _is_wide(values: Sequence[float]) -> bool:
    """Return whether values need a logarithmic scale."""
    return bool(values) and 0 < _LOGARITHMIC_FROM * min(values) <= max(values)


def _axis_label(swept: Sweep, quantity: str) -> str:
    if quantity == TIME:
        return "time (µs)"
    units = (unit(point, quantity) for point in swept.points)
    return printable(f"{quantity} ({next(filter(None, units), '')})".removesuffix(" ()"))


def _draw_quantity(
    panel: Any, swept: Sweep, points: Sequence[SweepPoint], x: str, of: tuple[str, str]
) -> None:
    """Draw a line and a band per application, or separate marks on an axis that is not numeric.

    ``of`` is the quantity and the kernel.
    """
    values = swept.plan.axes[x]
    numbers = _numbers(values)
    places = dict(zip(map(str, values), numbers or range(len(values)), strict=True))
    for number, application in enumerate(swept.plan.applications):
        colour = _SERIES[number % len(_SERIES)]
        found = sorted(
            (places[str(point.values[x])], _band(point, *of))
            for point in points
            if point.application == application
        )
        at = [place for place, _ in found]
        low, mean, high = zip(*(band for _, band in found), strict=True) if found else ((), (), ())
        # Text between two "$" would become a formula, and a leading "_" would hide the label.
        label = printable(application).replace("$", r"\$").lstrip("_")
        if numbers:
            panel.plot(at, mean, "o-", markersize=3, color=colour, label=label)
            panel.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
        else:
            at = [place + 0.1 * number for place in at]
            panel.vlines(at, low, high, color=colour, alpha=0.4, linewidth=4)
            panel.plot(at, mean, "o", markersize=4, color=colour, label=label)
    if not numbers:
        names = [printable(str(value)) for value in values]
        panel.set_xticks(range(len(values)), names, fontsize=8, parse_math=False)
    elif _is_wide(numbers):
        panel.set_xscale("log")
        panel.set_xticks(numbers, [f"{number:g}" for number in numbers], fontsize=8)
        panel.minorticks_off()
    panel.grid(alpha=0.25)


def _band(point: SweepPoint, quantity: str, kernel: str) -> tuple[float, float, float]:
    """Return the smallest value, the mean and the largest value; NaN if unavailable."""
    found = summary(point, quantity, kernel)
    scale = 1e6 if quantity == TIME else 1.0
    low, mean, high = (scale * found.get(name, math.nan) for name in ("min", "mean", "max"))
    return low, mean, high
