"""Plots of quantities over an axis: medians with their intervals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.sweeps.comparison_table import ComparisonTable
from convtime.sweeps.plan import (
    Label,
    is_geometric,
    main_axis,
    numbers_of,
    others_than,
)
from convtime.sweeps.sweep_table import TIME, Sweep, summary, unit
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
        low: lower end; not finite if it is unknown.
        middle: the value; not finite if it is unknown.
        high: upper end; not finite if it is unknown.
    """

    row: str
    values: Mapping[str, Label]
    series: str
    low: float
    middle: float
    high: float

    @property
    def range(self) -> tuple[float, ...]:
        """The finite values that are drawn: an interval is drawn if both ends are known."""
        has_interval = math.isfinite(self.low) and math.isfinite(self.high)
        values = (self.low, self.middle, self.high) if has_interval else (self.middle,)
        return tuple(filter(math.isfinite, values))


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
    drawn = known if quantities is None else tuple(quantities)
    for name in drawn:
        require(name in known, f"quantities must be from {', '.join(known)}, got {name!r}")
    if kernel and kernel not in swept.kernels:
        names = ", ".join(swept.kernels) or "none, since no kernels were recorded"
        raise InputError(f"kernel must be one of {names}, got {kernel!r}")
    marks = []
    for quantity_name in drawn:
        ends, scale = ("min", "max"), 1.0
        if quantity_name != TIME:
            units = (unit(point, quantity_name) for point in swept.points)
            titled = f"{quantity_name} ({next(filter(None, units), '')})".removesuffix(" ()")
            row = f"{titled}: median, min to max"
        elif kernel:
            scale, row = 1e6, "time (µs): median, min to max"
        else:
            scale, row, ends = 1e6, f"time (µs): {_MEDIAN}", ("median_low", "median_high")
        for point in swept.points:
            values = summary(point, quantity_name, kernel)
            low, middle, high = (
                math.nan if values.get(column) is None else scale * values[column]
                for column in (ends[0], "median", ends[1])
            )
            marks.append(Mark(row, point.values, point.application, low, middle, high))
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
    baseline = table.plan.baseline
    marks = []
    for point in table.points:
        timed = table.timed_at(point)
        for name in timed:
            low, high = point.measurements[name].median_interval
            ends = [1e6 * low, 1e6 * point.measurements[name].median, 1e6 * high]
            marks.append(Mark(f"time (µs): {_MEDIAN}", point.values, name, *ends))
            if point.comparison is not None and baseline in timed:
                ratio = point.comparison.ratio(name, baseline)
                row = f"ratio to {baseline}, 95 % interval"
                marks.append(Mark(row, point.values, name, ratio.low, ratio.value, ratio.high))
    return _marks_figure(", ".join(table.candidates), table.plan.axes, x, marks)


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


def _horizontal(name: str, values: Sequence[Label]) -> tuple[dict[str, float | str], Spec]:
    """Return the position of each value by its string, and the axis in Vega-Lite."""
    names = [*map(str, values)]
    numeric = numbers_of(values)
    if not (numeric and all(map(math.isfinite, numeric))):
        texts = labels(names)
        nominal: Spec = {"field": "x", "type": "nominal", "title": axis_title(name)}
        nominal |= {"scale": {"domain": texts}, "axis": {"labelAngle": 0}}
        return dict(zip(names, texts, strict=True)), nominal
    # Panels without some of the values have the same axis.
    ends = [min(numeric), max(numeric)]
    encoding = quantity("x", name, domain=ends)
    if is_geometric(numeric):
        ticks = {"values": numeric, "format": "~g"}
        encoding = quantity("x", name, type="log", domain=ends, axis=ticks)
    return dict(zip(names, numeric, strict=True)), encoding


def _marks_figure(
    title: str, axes: Mapping[str, Sequence[Label]], x: str | None, marks: Sequence[Mark]
) -> Figure:
    """Draw marks over an axis, with a row of panels for each of their rows.

    There is a column for each combination of the other axes.

    Raises:
        InputError: the axis is unknown, or there are no marks.
    """
    x = main_axis(axes) if x is None else x
    require(x in axes, f"x must be one of the axes {', '.join(axes)}, got {x!r}")
    require(marks, "there must be at least one measurement to draw, got none")
    names = list(dict.fromkeys(mark.series for mark in marks))
    series = dict(zip(names, labels(names), strict=True))
    positions, horizontal = _horizontal(x, axes[x])
    panels: dict[str, dict[str, list[Mark]]] = {}
    for mark in marks:
        row = panels.setdefault(mark.row, {})
        row.setdefault(others_than(x, mark.values, axes), []).append(mark)
    rows: list[Spec] = []
    for by_title in panels.values():
        row_marks = itertools.chain.from_iterable(by_title.values())
        scale = scale_for(itertools.chain.from_iterable(mark.range for mark in row_marks))
        views = []
        for panel_title, panel_marks in by_title.items():
            if horizontal["type"] == "quantitative":
                panel_marks.sort(key=lambda mark: positions[str(mark.values[x])])
            view = _panel(horizontal, series, panel_marks, scale)
            view |= columns(
                x=[positions[str(mark.values[x])] for mark in panel_marks],
                series=[series[mark.series] for mark in panel_marks],
                middle=numbers([mark.middle for mark in panel_marks]),
                **intervals(
                    [mark.low for mark in panel_marks], [mark.high for mark in panel_marks]
                ),
            )
            views.append(view | {"title": written(panel_title)})
        rows.append(
            {"concat": views, "columns": _MOST_ABREAST, "resolve": {"scale": {"y": "shared"}}}
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


def _panel(horizontal: Spec, series: Mapping[str, str], marks: Sequence[Mark], scale: Spec) -> Spec:
    """Return a panel with a line and a band per series, or marks if the axis is not numeric."""
    value = {field: quantity(field, marks[0].row, **scale) for field in ("middle", "low", "high")}
    interval = {"y": value["low"], "y2": {"field": "high"}}
    dots: Spec = {"mark": {"type": "line", "point": True}, "encoding": {"y": value["middle"]}}
    band: Spec = {"mark": {"type": "area", "opacity": 0.3}, "encoding": interval}
    encoding = {"x": horizontal, "color": series_color([*series.values()])}
    if horizontal["type"] == "nominal":
        dots["mark"] = {"type": "point", "filled": True, "opacity": 1}
        band["mark"] = {"type": "rule", "opacity": 0.5, "strokeWidth": 4}
        encoding["xOffset"] = series_offset([*series.values()])
    return {"width": _WIDTH, "height": _HEIGHT, "encoding": encoding, "layer": [band, dots]}
