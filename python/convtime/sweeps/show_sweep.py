"""Show a Sweep: a table, and all facts; and a point as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from convtime.sweeps.plan import SweepPoint
from convtime.sweeps.plot import sweep_figure as plot
from convtime.sweeps.show import appendix as appendix
from convtime.sweeps.show import (
    cautions,
    controls,
    facts,
    names_or_count,
    not_measured,
    roofline_figures,
    title_of,
)
from convtime.sweeps.sweep_table import Sweep, summary, unit
from convtime.timing.show import estimate, grouped
from convtime.view.figure import Figure
from convtime.view.page import Block, Details, Facts, Sentences, Table
from convtime.view.wording import format_seconds, printable

_TIMES = ("median [95 %]", "mean", "min .. max")


def line(swept: Sweep) -> str:
    parts = [title_of(swept), f"{len(swept.measurements)} points measured"]
    if swept.failed:
        parts.append(f"{len(swept.failed)} failed")
    if swept.missing:
        parts.append(f"{len(swept.missing)} missing")
    drift = swept.drift()
    if drift is not None and drift.ratio is not None:
        parts.append(f"drift {drift.ratio}")
    return printable(", ".join(parts))


def printed(swept: Sweep) -> Iterator[Block]:
    yield _with_axes(swept, _TIMES, _times)
    yield Sentences(_notes(swept), role="caution")


def details(swept: Sweep) -> Iterator[Block]:
    """Yield :func:`printed`, the counters, the control's visits, and the plan."""
    yield from printed(swept)
    if swept.metrics:
        yield _with_axes(
            swept,
            swept.metrics,
            lambda point: [
                _counted(summary(point, metric), unit(point, metric)) for metric in swept.metrics
            ],
        )
    rest = format_seconds(swept.plan.rest) if swept.plan.rest else "none"
    counters = {"counters": ", ".join(swept.plan.counters)} if swept.plan.counters else {}
    visits = controls(swept, (f"control: {_TIMES[0]}", *_TIMES[1:]), _times)
    yield Details([visits, Facts(facts(swept, "application", **counters, rest=rest))])


def _times(point: SweepPoint) -> list[str]:
    measured = point.measurement
    if measured is None:
        return ["failed", "", ""]
    ends = f"{format_seconds(measured.min)} .. {format_seconds(measured.max)}"
    return [estimate(measured), format_seconds(measured.mean), ends]


def _counted(values: Mapping[str, Any], unit: str) -> str:
    """Return the mean of a metric, with its range if the values differ."""
    if not values:
        return "–"
    low, high = values["min"], values["max"]
    ends = f" ({low:.4g} .. {high:.4g})" if low < high else ""
    return f"{values['mean']:.4g} {unit}{ends}".strip()


def _with_axes(
    swept: Sweep, headers: tuple[str, ...], cells: Callable[[SweepPoint], list[str]]
) -> Table:
    """Return a table with one row per point."""
    rows = [
        [point.application, *map(str, point.values.values()), *cells(point)]
        for point in swept.points
    ]
    right = [*swept.plan.axes, *headers]
    return Table(["", *right], rows, right=right)


def _notes(swept: Sweep) -> Iterator[str]:
    yield from not_measured(swept)
    for error, names in grouped((point.error, point.name) for point in swept.failed).items():
        yield f"{names_or_count(names)} failed: {error}"
    yield from cautions(swept, "points")
    uncounted = (
        (point.counters_reason, point.name) for point in swept.points if point.counters_reason
    )
    for reason, names in grouped(uncounted).items():
        yield f"counters were not read at {names_or_count(names)}: {reason}"
    if swept.metrics:
        yield f"{len(swept.metrics)} metrics were counted; see details()"


def figures(swept: Sweep) -> Iterator[Figure]:
    if swept.measurements:
        yield plot(swept)
    yield from roofline_figures(swept)
