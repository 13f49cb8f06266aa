"""Plots of quantities over an axis: medians with their intervals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from convtime.core.errors import InputError
from convtime.sweeps.crossovers import is_geometric
from convtime.sweeps.plan import Label, SweepPoint, main_axis, numbers_of, others_than
from convtime.sweeps.rows import TIME, summary, unit
from convtime.timing.plot import ratio_panel
from convtime.view.figure import (
    Figure,
    Spec,
    axis_title,
    columns,
    intervals,
    labels,
    numbers,
    quantity,
    scale_for,
    series_color,
    series_offset,
    written,
)
from convtime.view.wording import counted

if TYPE_CHECKING:
    from convtime.sweeps.result import Sweep
    from convtime.sweeps.table import ComparisonTable
    from convtime.timing.measurement import Measurement

_WIDTH, _HEIGHT = 320, 220  # pixels of a panel
_MOST_ABREAST = 3
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
        InputError: an axis, quantity or kernel is unknown, or the sweep has no measurements.
    """
    known = (TIME, *swept.metrics)
    wanted = known if quantities is None else tuple(quantities)
    for each in wanted:
        if each not in known:
            raise InputError(f"quantities must be from {', '.join(known)}, got {each!r}")
    if kernel and kernel not in swept.kernels:
        names = ", ".join(swept.kernels) or "none, since no kernels were recorded"
        raise InputError(f"kernel must be one of {names}, got {kernel!r}")
    marks = [_mark(swept, point, each, kernel) for each in wanted for point in swept.points]
    title = ", ".join(swept.plan.applications) + (f": {kernel}" if kernel else "")
    return _marks_figure(title, swept.plan.axes, x, marks if swept.measurements else ())


def table_figure(table: ComparisonTable, x: str | None = None) -> Figure:
    """Draw the candidates' times over an axis, and their ratios to the baseline.

    Args:
        table: comparison to draw.
        x: name of the axis. Default: :func:`main_axis`.

    Raises:
        InputError: the axis is unknown, or there are no measurements.
    """
    title = ", ".join(table.candidates)
    return _marks_figure(title, table.plan.axes, x, [*_times(table), *_ratios(table)])


def geomeans_figure(table: ComparisonTable) -> Figure:
    """Draw the geometric mean over the points of each candidate's ratio to the baseline."""
    means = table.geomeans
    title = f"geometric means of the ratios to {table.plan.baseline}"
    return Figure(
        title=title,
        description=f"{title}: {', '.join(f'{name} {mean}' for name, mean in means.items())}.",
        view=ratio_panel(labels(means), [*means.values()], table.plan.margin, "ratio"),
        key=f"dot: mean; bar: its 95 % interval; band: ± {table.plan.margin:.2%}",
    )


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


@dataclasses.dataclass(frozen=True)
class _Across:
    """The horizontal axis.

    Attributes:
        name: name of the axis.
        places: the position of each value, by its text.
        encoding: the axis in Vega-Lite.
        is_numeric: whether positions are numbers, not labels.
    """

    name: str
    places: Mapping[str, float]
    encoding: Spec
    is_numeric: bool

    def at(self, mark: Mark) -> float | str:
        place = self.places[str(mark.values[self.name])]
        if self.is_numeric:
            return place
        label: str = self.encoding["scale"]["domain"][int(place)]
        return label


def _across(name: str, values: Sequence[Label]) -> _Across:
    numeric = numbers_of(values)
    if not all(map(math.isfinite, numeric)):
        numeric = []
    places = dict(zip(map(str, values), numeric or range(len(values)), strict=True))
    # Panels without some of the values have the same axis.
    ends = [min(numeric, default=0), max(numeric, default=0)]
    if not numeric:
        encoding: Spec = {"field": "x", "type": "nominal", "title": axis_title(name)}
        encoding |= {"scale": {"domain": labels(map(str, values))}, "axis": {"labelAngle": 0}}
    elif is_geometric(numeric):
        ticks = {"values": numeric, "format": "~g"}
        encoding = quantity("x", name, type="log", domain=ends, axis=ticks)
    else:
        encoding = quantity("x", name, domain=ends)
    return _Across(name, places, encoding, bool(numeric))


def _marks_figure(
    title: str, axes: Mapping[str, Sequence[Label]], x: str | None, marks: Sequence[Mark]
) -> Figure:
    """Draw marks over an axis, with a row of panels for each of their rows.

    There is a column for each combination of the other axes.

    Raises:
        InputError: the axis is unknown, or there are no marks.
    """
    x = main_axis(axes) if x is None else x
    if x not in axes:
        raise InputError(f"x must be one of the axes {', '.join(axes)}, got {x!r}")
    if not marks:
        raise InputError("there must be at least one measurement to draw, got none")
    names = list(dict.fromkeys(mark.series for mark in marks))
    series = dict(zip(names, labels(names), strict=True))
    across = _across(x, axes[x])
    panels: dict[str, dict[str, list[Mark]]] = {}
    for mark in marks:
        row = panels.setdefault(mark.row, {})
        row.setdefault(others_than(x, mark.values, axes), []).append(mark)
    rows: list[Spec] = []
    for by_title in panels.values():
        values = itertools.chain.from_iterable(by_title.values())
        ends = [end for mark in values for end in (mark.low, mark.middle, mark.high)]
        scale = scale_for(end for end in ends if math.isfinite(end))
        found = [
            _panel(across, series, of_panel, title, scale) for title, of_panel in by_title.items()
        ]
        rows.append(
            {"concat": found, "columns": _MOST_ABREAST, "resolve": {"scale": {"y": "shared"}}}
        )
    return Figure(
        title=title,
        description=(
            f"{'; '.join(panels)}; over {x}, for {counted(len(names), 'series', 'series')}: "
            f"{', '.join(names)}."
        ),
        view={"vconcat": rows},
        key="dot: median; band or bar: its interval, or from the minimum to the maximum",
    )


def _panel(
    across: _Across,
    series: Mapping[str, str],
    marks: Sequence[Mark],
    title: str,
    scale: Spec,
) -> Spec:
    """Return a panel with a line and a band per series, or marks if the axis is not numeric."""
    marks = sorted(marks, key=lambda mark: across.places[str(mark.values[across.name])])
    ends = intervals([mark.low for mark in marks], [mark.high for mark in marks])
    middle = numbers([mark.middle for mark in marks])
    value = {field: quantity(field, marks[0].row, **scale) for field in ("middle", "low", "high")}
    interval = {"y": value["low"], "y2": {"field": "high"}}
    dots: Spec = {"mark": {"type": "line", "point": True}, "encoding": {"y": value["middle"]}}
    band: Spec = {"mark": {"type": "area", "opacity": 0.3}, "encoding": interval}
    shift = {}
    if not across.is_numeric:
        dots["mark"] = {"type": "point", "filled": True, "opacity": 1}
        band["mark"] = {"type": "rule", "opacity": 0.5, "strokeWidth": 4}
        shift = {"xOffset": series_offset([*series.values()])}
    return {
        **columns(
            x=[across.at(mark) for mark in marks],
            series=[series[mark.series] for mark in marks],
            middle=middle,
            **ends,
        ),
        "title": written(title),
        "width": _WIDTH,
        "height": _HEIGHT,
        "encoding": {"x": across.encoding, "color": series_color([*series.values()]), **shift},
        "layer": [band, dots],
    }


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
