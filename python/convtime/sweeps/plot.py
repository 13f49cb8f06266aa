"""Plots of quantities over an axis of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.errors import InputError
from convtime.core.plot import file_content, new_figure
from convtime.core.text import printable
from convtime.sweeps.plan import ITERATIONS, Label, SweepPoint
from convtime.sweeps.rows import TIME, summary, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convtime.sweeps.result import Sweep

# Colors of applications, in order; from the same palette.
_SERIES = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LOGARITHMIC_FROM = 20  # ratio of the largest to the smallest value


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
    figure: Figure = new_figure(1 + 4 * len(columns), 0.8 + 3 * len(wanted))
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
    return file_content(sweep_figure(swept), suffix)


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
        color = _SERIES[number % len(_SERIES)]
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
            panel.plot(at, mean, "o-", markersize=3, color=color, label=label)
            panel.fill_between(at, low, high, color=color, alpha=0.2, linewidth=0)
        else:
            at = [place + 0.1 * number for place in at]
            panel.vlines(at, low, high, color=color, alpha=0.4, linewidth=4)
            panel.plot(at, mean, "o", markersize=4, color=color, label=label)
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
