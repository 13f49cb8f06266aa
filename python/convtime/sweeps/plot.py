"""Plots of quantities over an axis: medians with their intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.errors import InputError
from convtime.core.plot import file_content, new_figure
from convtime.core.text import printable
from convtime.sweeps.crossovers import is_geometric
from convtime.sweeps.plan import ITERATIONS, Label, SweepPoint
from convtime.sweeps.rows import TIME, summary, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convtime.sweeps.result import Sweep
    from convtime.sweeps.table import ComparisonTable
    from convtime.timing.comparison import Comparison
    from convtime.timing.measurement import Measurement

#: Colors of applications, in order; from the same palette, and readable on white and on black.
SERIES = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
_LOGARITHMIC_FROM = 20  # ratio of the largest to the smallest value
_MEDIAN = "median, 95 % interval"


@dataclasses.dataclass(frozen=True)
class Mark:
    """A value with its ends, in one panel.

    Attributes:
        row: label of the panel's row: quantity and unit.
        values: the value of each axis.
        series: what it belongs to, in the legend.
        low: lower end; NaN if it is unknown.
        middle: the value; NaN if it is unknown.
        high: upper end; NaN if it is unknown.
    """

    row: str
    values: Mapping[str, Label]
    series: str
    low: float
    middle: float
    high: float


def sweep_figure(
    swept: Sweep, x: str | None = None, quantities: Sequence[str] | None = None, kernel: str = ""
) -> Figure:
    """Draw each quantity over an axis.

    Args:
        swept: sweep to draw.
        x: name of the axis. Default: :func:`main_axis`.
        quantities: ``time`` and metrics; None for all.
        kernel: short name of a kernel; empty for whole calls.

    Raises:
        InputError: an axis, quantity or kernel is unknown, the sweep has no measurements, or
            matplotlib is missing.
    """
    known = (TIME, *swept.metrics)
    wanted = known if quantities is None else tuple(quantities)
    for quantity in wanted:
        if quantity not in known:
            raise InputError(f"quantities must be from {', '.join(known)}, got {quantity!r}")
    if kernel and kernel not in swept.kernels:
        names = ", ".join(swept.kernels) or "none, since no kernels were recorded"
        raise InputError(f"kernel must be one of {names}, got {kernel!r}")
    marks = [_mark(swept, point, quantity, kernel) for quantity in wanted for point in swept.points]
    return marks_figure(swept.plan.axes, x, marks if swept.measurements else ())


def table_figure(table: ComparisonTable, x: str | None = None) -> Figure:
    """Draw the candidates' times over an axis, and their ratios to the baseline.

    Args:
        table: comparison to draw.
        x: name of the axis. Default: :func:`main_axis`.

    Raises:
        InputError: the axis is unknown, there are no measurements, or matplotlib is missing.
    """
    return marks_figure(table.plan.axes, x, [*_times(table), *_ratios(table)])


def _times(table: ComparisonTable) -> Iterator[Mark]:
    for point in table.points:
        for name in table.timed_at(point):
            measured = point.comparison.measurements[name]  # type: ignore[union-attr]
            low, middle, high = (1e6 * seconds for seconds in _median_band(measured))
            yield Mark(f"time (µs): {_MEDIAN}", point.values, name, low, middle, high)


def _ratios(table: ComparisonTable) -> Iterator[Mark]:
    baseline = table.plan.baseline
    for point in table.points:
        timed = table.timed_at(point)
        for name in timed if baseline in timed else ():
            ratio = point.comparison.ratio(name, baseline)  # type: ignore[union-attr]
            known = all(map(math.isfinite, (ratio.low, ratio.high)))
            low, high = (ratio.low, ratio.high) if known else (math.nan, math.nan)
            label = f"ratio to {baseline}, 95 % interval"
            yield Mark(label, point.values, name, low, ratio.value, high)


def draw(result: Comparison | ComparisonTable | Sweep, suffix: str) -> bytes:
    """Return the content of a file with a result's plot; the suffix determines its type."""
    return file_content(result.plot(), suffix)


def main_axis(axes: Mapping[str, Sequence[Label]]) -> str:
    """Return ``iterations`` if present, else the first numeric axis, else the first axis."""
    if ITERATIONS in axes:
        return ITERATIONS
    of_numbers = (axis for axis, values in axes.items() if len(values) > 1 and numbers_of(values))
    return next(of_numbers, next(iter(axes)))


def numbers_of(values: Sequence[Label]) -> list[float]:
    """Return an axis's values if all are numbers; otherwise an empty list."""
    found = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return found if len(found) == len(values) else []


def others_than(x: str, values: Mapping[str, Label], axes: Mapping[str, Sequence[Label]]) -> str:
    """Return the values of the other axes that have several, in words."""
    others = [axis for axis, labels in axes.items() if axis != x and len(labels) > 1]
    return ", ".join(f"{axis}={values[axis]}" for axis in others)


def marks_figure(
    axes: Mapping[str, Sequence[Label]], x: str | None, marks: Sequence[Mark]
) -> Figure:
    """Draw marks over an axis, with a row of panels for each of their rows.

    There is a column for each combination of the other axes.

    Raises:
        InputError: the axis is unknown, there are no marks, or matplotlib is missing.
    """
    x = main_axis(axes) if x is None else x
    if x not in axes:
        raise InputError(f"x must be one of the axes {', '.join(axes)}, got {x!r}")
    if not marks:
        raise InputError("there must be at least one measurement to draw, got none")
    titles = list(dict.fromkeys(others_than(x, mark.values, axes) for mark in marks))
    rows = list(dict.fromkeys(mark.row for mark in marks))
    series = list(dict.fromkeys(mark.series for mark in marks))
    figure: Figure = new_figure(1 + 4 * len(titles), 0.8 + 3 * len(rows))
    from matplotlib import ticker

    panels = figure.subplots(len(rows), len(titles), squeeze=False, sharex=True, sharey="row")
    for row, panels_of_row in zip(rows, panels, strict=True):
        of_row = [mark for mark in marks if mark.row == row]
        for title, panel in zip(titles, panels_of_row, strict=True):
            drawn = [mark for mark in of_row if others_than(x, mark.values, axes) == title]
            _draw(panel, x, axes[x], series, drawn)
        panels_of_row[0].set_ylabel(printable(row), fontsize=8, parse_math=False)
        ends = [end for mark in of_row for end in (mark.low, mark.middle, mark.high)]
        if _is_wide([end for end in ends if not math.isnan(end)]):
            panels_of_row[0].set_yscale("log")
            for which in ("set_major_formatter", "set_minor_formatter"):
                getattr(panels_of_row[0].yaxis, which)(ticker.LogFormatter())  # 20, not 2×10¹
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(printable(title), fontsize=9, parse_math=False)
    for panel in panels[-1]:
        panel.set_xlabel(printable(x), fontsize=8, parse_math=False)
    panels[0][0].legend(loc="best", fontsize=7)
    return figure


def _is_wide(values: Sequence[float]) -> bool:
    """Return whether values need a logarithmic scale."""
    return bool(values) and 0 < _LOGARITHMIC_FROM * min(values) <= max(values)


def _draw(
    panel: Any, x: str, values: Sequence[Label], series: Sequence[str], marks: Sequence[Mark]
) -> None:
    """Draw a line and a band per series, or separate marks on an axis that is not numeric."""
    numbers = numbers_of(values)
    places = dict(zip(map(str, values), numbers or range(len(values)), strict=True))
    for number, name in enumerate(series):
        color = SERIES[number % len(SERIES)]
        found = sorted(
            (places[str(mark.values[x])], mark.low, mark.middle, mark.high)
            for mark in marks
            if mark.series == name
        )
        at, low, middle, high = zip(*found, strict=True) if found else ((), (), (), ())
        # Text between two "$" would become a formula, and a leading "_" would hide the label.
        label = printable(name).replace("$", r"\$").lstrip("_")
        if numbers:
            panel.plot(at, middle, "o-", markersize=3, color=color, label=label)
            panel.fill_between(at, low, high, color=color, alpha=0.3, linewidth=0)
        else:
            at = tuple(place + 0.1 * number for place in at)
            panel.vlines(at, low, high, color=color, alpha=0.5, linewidth=4)
            panel.plot(at, middle, "o", markersize=4, color=color, label=label)
    if not numbers:
        names = [printable(str(value)) for value in values]
        panel.set_xticks(range(len(values)), names, fontsize=8, parse_math=False)
    elif is_geometric(numbers):
        panel.set_xscale("log")
        panel.set_xticks(numbers, [f"{number:g}" for number in numbers], fontsize=8)
        panel.minorticks_off()
    panel.grid(alpha=0.25)


def _mark(swept: Sweep, point: SweepPoint, quantity: str, kernel: str) -> Mark:
    label = _axis_label(swept, quantity, kernel)
    if quantity == TIME and not kernel and point.measurement is not None:
        ends = [1e6 * seconds for seconds in _median_band(point.measurement)]
    else:
        found = summary(point, quantity, kernel)
        scale = 1e6 if quantity == TIME else 1.0
        ends = [scale * found.get(name, math.nan) for name in ("min", "median", "max")]
    return Mark(label, point.values, point.application, *ends)


def _axis_label(swept: Sweep, quantity: str, kernel: str) -> str:
    if quantity == TIME:
        return f"time (µs): {'median, min to max' if kernel else _MEDIAN}"
    units = (unit(point, quantity) for point in swept.points)
    named = f"{quantity} ({next(filter(None, units), '')})".removesuffix(" ()")
    return f"{named}: median, min to max"


def _median_band(measured: Measurement) -> tuple[float, float, float]:
    """Return the median with the ends of its interval; NaN for an unbounded interval."""
    low, high = measured.median_interval
    known = math.isfinite(low) and math.isfinite(high)
    return (low if known else math.nan), measured.median, (high if known else math.nan)
