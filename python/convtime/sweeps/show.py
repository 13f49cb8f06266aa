"""Show a Sweep: a table, and all facts; and a point as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.core import svg
from convtime.core.page import Block, Details, Facts, Picture, Sentences, Table
from convtime.core.text import printable
from convtime.core.units import format_seconds
from convtime.sweeps.rows import DRIFT_MARGIN, summary, unit
from convtime.timing.show import estimate, facts_of, reservations
from convtime.timing.show import line as measurement_line

if TYPE_CHECKING:
    from convtime.regression.changes import Change
    from convtime.sweeps.plan import SweepPoint
    from convtime.sweeps.result import Sweep

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


def point_line(point: SweepPoint) -> str:
    """Return the measurement of a point, or why it is missing."""
    if point.measurement is None:
        return printable(f"{point.name}: {point.error or 'not measured'}")
    return measurement_line(point.measurement)


def printed(swept: Sweep) -> Iterator[Block]:
    """Yield a table of the times, and notes below it."""
    yield _with_axes(swept, _TIMES, _times)
    yield from _pictures(swept)
    yield Sentences(_sentences(swept))


def details(swept: Sweep) -> Iterator[Block]:
    """Yield :func:`printed`, the counters, the control's visits, and the plan."""
    yield from printed(swept)
    if swept.metrics:
        yield _counted(swept)
    yield Details([_controls(swept), Facts(_facts(swept))])


def _pictures(swept: Sweep) -> Iterator[Picture]:
    """Yield a picture of each measured application's means, in the order of the table."""
    for application in swept.plan.applications:
        means = [
            None if point.measurement is None else point.measurement.mean
            for point in swept.points
            if point.application == application
        ]
        known = [mean for mean in means if mean is not None]
        if known:
            ends = (format_seconds(min(known)), format_seconds(max(known)))
            yield Picture(svg.course(range(len(means)), means, ends), title=application)


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
    headers = ["visit", f"control: {first}", *others]
    rows = [[f"{point.visit + 1}", *_times(point)] for point in swept.controls]
    return Table(headers, rows, right=headers)


def _sentences(swept: Sweep) -> Iterator[str]:
    """Yield reservations about the table."""
    if swept.missing:
        yield (
            f"{_named(swept.missing)} not measured: the sweep was interrupted; call it again with "
            "its file to resume"
        )
    for error, points in _grouped((point.error, point) for point in swept.failed).items():
        yield f"{_named(points)} failed: {error}"
    yield _drift_sentence(swept)
    reserved = (
        (reservation, point)
        for point in swept.points
        if point.measurement is not None
        for reservation in reservations(point.measurement)
    )
    for reservation, points in _grouped(reserved).items():
        yield f"{reservation}: {_named(points)}"
    uncounted = ((point.counters_reason, point) for point in swept.points if point.counters_reason)
    for reason, points in _grouped(uncounted).items():
        yield f"counters were not read at {_named(points)}: {reason}"
    if swept.metrics:
        yield f"{len(swept.metrics)} metrics were counted; see details()"


def _grouped(pairs: Iterable[tuple[str, SweepPoint]]) -> dict[str, list[SweepPoint]]:
    """Group points by sentence."""
    found: dict[str, list[SweepPoint]] = {}
    for said, point in pairs:
        found.setdefault(said, []).append(point)
    return found


def _named(points: Sequence[SweepPoint]) -> str:
    """Return the names of a few points, or the number of many."""
    if len(points) <= _MOST_NAMED:
        return ", ".join(point.name for point in points)
    return f"{len(points)} points"


def _drift_sentence(swept: Sweep) -> str:
    control = swept.plan.control.name
    drift = swept.drift()
    if drift is None:
        failed = next((point.error for point in swept.controls if point.error), "")
        why = f"it failed: {failed}" if failed else "it was measured fewer than two times"
        return f"drift is unknown: the control is {control}, and {why}"
    if drift.ratio is None:
        return f"drift is unknown: the control is {control}, and {drift.sentence}"
    return (
        f"drift: {control} ran at {drift.ratio} of its initial time by the end; {_in_words(drift)}"
    )


def _in_words(drift: Change) -> str:
    if drift.verdict == "same":
        return f"the machine was stable within {DRIFT_MARGIN:.0%}"
    if drift.verdict == "uncertain":
        return f"the machine's stability is uncertain: {drift.sentence}"
    return (
        f"WARNING: the machine became {drift.verdict} during the sweep, by more than "
        f"{DRIFT_MARGIN:.0%}; drift alone may explain smaller differences between points"
    )


def _facts(swept: Sweep) -> dict[str, str]:
    plan = swept.plan
    facts = {f"application {name}": identity for name, identity in plan.applications.items()}
    facts |= {f"axis {axis}": ", ".join(map(str, values)) for axis, values in plan.axes.items()}
    if plan.options:
        facts["options"] = ", ".join(f"{name}={value}" for name, value in plan.options.items())
    if plan.counters:
        facts["counters"] = ", ".join(plan.counters)
    facts["rest"] = format_seconds(plan.rest) if plan.rest else "none"
    facts["seed"] = f"{plan.seed}, for the order of the points"
    facts["machine"] = ", ".join(f"{what} {value}" for what, value in plan.machine.items())
    return facts | _common_conditions(swept)


def _common_conditions(swept: Sweep) -> dict[str, str]:
    """Return the measurement conditions that all points share."""
    sheets = [facts_of(measured) for measured in swept.measurements.values()]
    found = {}
    for condition in _CONDITIONS:
        told = {sheet.get(condition) for sheet in sheets}
        if len(told) == 1 and None not in told:
            found[condition] = str(told.pop())
    return found
