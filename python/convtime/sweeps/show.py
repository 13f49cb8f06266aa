"""Show a Sweep: a table, and all facts; and a point as one line."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.sweeps.plot import sweep_figure as plot
from convtime.sweeps.rows import summary, unit
from convtime.timing import show_measurements
from convtime.timing.roofline import rooflines
from convtime.timing.show import estimate, facts_of, grouped, reservations
from convtime.view.figure import Figure
from convtime.view.page import Block, Details, Facts, Sentences, Table
from convtime.view.wording import format_seconds, printable

if TYPE_CHECKING:
    from convtime.sweeps.plan import Plan, SweepPoint, Visit
    from convtime.sweeps.result import Sweep
    from convtime.timing.measurement import Measurement

_TIMES = ("median [95 %]", "mean", "min .. max")
_MOST_NAMED = 3  # points in a sentence
# Facts of a measurement that describe its conditions.
_CONDITIONS = ("method", "queue", "cache", "placement", "pages", "regime", "device")


def line(swept: Sweep) -> str:
    """Return one line with applications, axes, number of points, and drift."""
    applications = ", ".join(swept.plan.applications)
    axes = " × ".join(f"{len(values)} {axis}" for axis, values in swept.plan.axes.items())
    told = [f"{applications}: {axes}", f"{len(swept.measurements)} points measured"]
    if swept.failed:
        told.append(f"{len(swept.failed)} failed")
    if swept.missing:
        told.append(f"{len(swept.missing)} missing")
    drift = swept.drift()
    if drift is not None and drift.ratio is not None:
        told.append(f"drift {drift.ratio}")
    return printable(", ".join(told))


def printed(swept: Sweep) -> Iterator[Block]:
    """Yield a table of the times, and notes below it."""
    yield _with_axes(swept, _TIMES, _times)
    yield Sentences(_sentences(swept), role="caution")


def details(swept: Sweep) -> Iterator[Block]:
    """Yield :func:`printed`, the counters, the control's visits, and the plan."""
    yield from printed(swept)
    if swept.metrics:
        yield _counted(swept)
    yield Details([_controls(swept), Facts(_facts(swept))])


def _times(point: SweepPoint) -> list[str]:
    measured = point.measurement
    if measured is None:
        return ["failed", "", ""]
    ends = f"{format_seconds(measured.min)} .. {format_seconds(measured.max)}"
    return [estimate(measured), format_seconds(measured.mean), ends]


def _counted(swept: Sweep) -> Table:
    """Return the mean of each metric, with its range if the values differ."""

    def cells(point: SweepPoint) -> list[str]:
        return [_written(summary(point, metric), unit(point, metric)) for metric in swept.metrics]

    return _with_axes(swept, swept.metrics, cells)


def _written(known: Mapping[str, Any], unit: str) -> str:
    if not known:
        return "–"
    ends = ""
    if known["min"] < known["max"]:
        ends = f" ({known['min']:.4g} .. {known['max']:.4g})"
    return f"{known['mean']:.4g} {unit}{ends}".strip()


def _with_axes(
    swept: Sweep, headers: tuple[str, ...], cells: Callable[[SweepPoint], list[str]]
) -> Table:
    """Return a table with one row per point."""
    rows = [
        [point.application, *map(str, point.values.values()), *cells(point)]
        for point in swept.points
    ]
    named = [*swept.plan.axes, *headers]
    return Table(["", *named], rows, right=named)


def _controls(swept: Sweep) -> Table:
    first, *others = _TIMES
    headers = ["visit", f"control: {first}", *others, "worker"]
    rows = [[f"{point.visit + 1}", *_times(point), point.worker] for point in swept.controls]
    return Table(headers, rows, right=headers[:-1])


def _sentences(swept: Sweep) -> Iterator[str]:
    """Yield reservations about the table."""
    if swept.missing:
        yield not_measured(swept.missing)
    for error, points in grouped((point.error, point) for point in swept.failed).items():
        yield f"{named(points)} failed: {error}"
    yield from swept.controlled.sentences(points_by_worker(swept.points))
    reserved = (
        (reservation, point)
        for point in swept.points
        if point.measurement is not None
        for reservation in reservations(point.measurement)
    )
    for reservation, points in grouped(reserved).items():
        yield f"{reservation}: {named(points)}"
    uncounted = ((point.counters_reason, point) for point in swept.points if point.counters_reason)
    for reason, points in grouped(uncounted).items():
        yield f"counters were not read at {named(points)}: {reason}"
    if swept.metrics:
        yield f"{len(swept.metrics)} metrics were counted; see details()"


def points_by_worker(points: Iterable[Visit]) -> Mapping[str, int]:
    """Return the number of points that each worker measured."""
    return collections.Counter(point.worker for point in points)


def not_measured(points: Sequence[Visit]) -> str:
    """Return a sentence about the points that an interrupted run lacks."""
    return (
        f"{named(points)} not measured: the run was interrupted; call it again with its file to "
        "resume"
    )


def named(points: Sequence[Visit]) -> str:
    """Return the names of a few points, or the number of many."""
    if len(points) <= _MOST_NAMED:
        return ", ".join(point.name for point in points)
    return f"{len(points)} points"


def _facts(swept: Sweep) -> dict[str, str]:
    plan = swept.plan
    facts = plan_facts(plan, "application")
    if plan.counters:
        facts["counters"] = ", ".join(plan.counters)
    facts["rest"] = format_seconds(plan.rest) if plan.rest else "none"
    return facts | common_conditions(swept.measurements.values())


def plan_facts(plan: Plan[Any], what: str) -> dict[str, str]:
    """Return the facts of every plan; ``what`` is the word for an application."""
    facts = {f"{what} {name}": identity for name, identity in plan.applications.items()}
    facts |= {f"axis {axis}": ", ".join(map(str, values)) for axis, values in plan.axes.items()}
    if plan.options:
        facts["options"] = ", ".join(f"{name}={value}" for name, value in plan.options.items())
    facts["seed"] = f"{plan.seed}, for the order of the points"
    facts["machine"] = ", ".join(f"{part} {value}" for part, value in plan.machine.items())
    return facts


def common_conditions(measurements: Iterable[Measurement]) -> dict[str, str]:
    """Return the measurement conditions that all points share."""
    sheets = [facts_of(measured) for measured in measurements]
    found = {}
    for condition in _CONDITIONS:
        told = {sheet.get(condition) for sheet in sheets}
        if len(told) == 1 and None not in told:
            found[condition] = str(told.pop())
    return found


def figures(swept: Sweep) -> Iterator[Figure]:
    """Yield the figures, the most informative first."""
    if swept.measurements:
        yield plot(swept)
    yield from rooflines(
        ", ".join(swept.plan.applications),
        (
            (point.application, point.name, point.measurement)
            for point in swept.points
            if point.measurement is not None
        ),
    )


def appendix(swept: Sweep) -> Iterator[Block]:
    """Yield the measurements, for a page."""
    yield from show_measurements.appendix(swept.measurements)
