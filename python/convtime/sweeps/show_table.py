"""Show a ComparisonTable: points × candidates, the verdict in words, and all facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from convtime.sweeps.plot import geomeans_figure
from convtime.sweeps.plot import table_figure as plot
from convtime.sweeps.show import (
    common_conditions,
    named,
    not_measured,
    plan_facts,
    points_by_worker,
)
from convtime.sweeps.table_rows import rows_at
from convtime.timing import show_measurements
from convtime.timing.roofline import rooflines
from convtime.timing.show import estimate, grouped, reservations
from convtime.view.figure import Figure
from convtime.view.page import Block, Details, Facts, Sentences, Table
from convtime.view.wording import counted, printable

if TYPE_CHECKING:
    from convtime.sweeps.comparison_plan import ComparisonPoint
    from convtime.sweeps.table import ComparisonTable

_FASTEST = "fastest"
_RATES = ("compute", "of ceiling", "memory", "of ceiling")


def line(table: ComparisonTable) -> str:
    """Return one line with the candidates, the axes and the verdict."""
    axes = " × ".join(f"{len(values)} {axis}" for axis, values in table.plan.axes.items())
    told = [f"{', '.join(table.candidates)}: {axes}", *table.verdict]
    if table.failed:
        told.append(f"{counted(len(table.failed), 'point')} with failures")
    if table.missing:
        told.append(f"{len(table.missing)} missing")
    return printable("; ".join(told))


def printed(table: ComparisonTable) -> Iterator[Block]:
    """Yield the table of times, the verdict in words, and notes below them."""
    headers, rows = _cells(table)
    yield Table(headers, rows, right=headers[:-1], footers=len(rows) - len(table.points))
    yield Sentences(table.verdict, role="answer")
    yield Sentences(map(str, table.crossovers), role="answer")
    yield Sentences(_notes(table), role="caution")


def details(table: ComparisonTable) -> Iterator[Block]:
    """Yield :func:`printed`, the ratios, the rates, the control's visits, and the plan."""
    yield from printed(table)
    yield Details([_ratios(table), *_rates(table), _controls(table), Facts(_facts(table))])


def _cells(table: ComparisonTable) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows: the axes, each candidate's time, and the fastest ones."""
    headers = [*table.plan.axes, *table.candidates, _FASTEST]
    rows = []
    for point in table.points:
        times = [_time(point, name) for name in table.candidates]
        outcome = table.outcomes.get(point.name)
        fastest = "" if outcome is None else str(outcome)
        rows.append([*map(str, point.values.values()), *times, fastest])
    means = table.geomeans
    if means and len(rows) > 1:
        cells = [str(means[name]) if name in means else "1" for name in table.candidates]
        rows.append(["geomean", *[""] * (len(table.plan.axes) - 1), *cells, ""])
    return headers, rows


def _time(point: ComparisonPoint, name: str) -> str:
    if point.comparison is None or name not in point.comparison.measurements:
        return "failed" if name in point.errors else "–"
    return estimate(point.comparison.measurements[name])


def _ratios(table: ComparisonTable) -> Table:
    """Return the ratios to the baseline, with their verdicts."""
    others = [name for name in table.candidates if name != table.plan.baseline]
    rows = []
    for point in table.points:
        by_name = {row["candidate"]: row for row in rows_at(table, point)}
        cells = []
        for name in others:
            judged = table.judge(point.name, name) if "verdict" in by_name[name] else None
            cells.append("–" if judged is None else f"{judged.ratio} {judged.verdict}")
        rows.append([*map(str, point.values.values()), *cells])
    headers = [*table.plan.axes, *others]
    return Table(headers, rows, right=headers, title=f"ratio to {table.plan.baseline} [95 %]")


def _rates(table: ComparisonTable) -> Iterator[Table]:
    """Yield the FLOP and byte rates, if any are known."""
    rows = []
    for point in table.points:
        for row in rows_at(table, point):
            rates = (
                ("flops_per_second", 1e-12, "TFLOP/s", "flops_share"),
                ("bytes_per_second", 1e-9, "GB/s", "bytes_share"),
            )
            cells = []
            for rate, scale, unit, share in rates:
                cells.append(f"{scale * row[rate]:.4g} {unit}" if rate in row else "–")
                cells.append(f"{row[share]:.1%}" if share in row else "–")
            if set(cells) != {"–"}:
                rows.append([*map(str, point.values.values()), row["candidate"], *cells])
    headers = [*table.plan.axes, "candidate", *_RATES]
    if rows:
        title = "rates, and shares of the rates that a large matmul and a large copy reach"
        yield Table(headers, rows, right=headers, title=title)


def _controls(table: ComparisonTable) -> Table:
    headers = ["visit", *table.candidates, "worker"]
    rows = [
        [f"{point.visit + 1}", *(_time(point, name) for name in table.candidates), point.worker]
        for point in table.controls
    ]
    title = f"control: {table.plan.control.name}"
    return Table(headers, rows, right=headers[:-1], title=title)


def _notes(table: ComparisonTable) -> Iterator[str]:
    """Yield reservations about the table."""
    if table.missing:
        yield not_measured(table.missing)
    failures = (
        (f"{name} failed: {error}", point)
        for point in table.points
        for name, error in point.errors.items()
    )
    for failure, points in grouped(failures).items():
        yield f"{failure} ({named(points)})"
    complete = sum(len(table.timed_at(point)) == len(table.candidates) for point in table.points)
    if table.geomeans and complete < len(table.points):
        yield f"the geometric means cover the {complete} of {len(table.points)} complete points"
    yield from _undecided(table)
    yield from _results(table)
    yield from table.controlled.sentences(points_by_worker(table.points))
    reserved = (
        (reservation, f"{name} {point.name}")
        for point in table.points
        if point.comparison is not None
        for name in table.timed_at(point)
        for reservation in reservations(point.comparison.measurements[name])
    )
    for reservation, names in grouped(reserved).items():
        yield f"{reservation}: {_few(names)}"


def _undecided(table: ComparisonTable) -> Iterator[str]:
    """Yield why points are undecided."""
    undecided = (
        (judged.sentence, table[name])
        for name, outcome in table.outcomes.items()
        for leader in outcome.leaders
        if leader != outcome.fastest
        for judged in [table.judge(name, leader, outcome.fastest)]
        if judged.verdict == "uncertain"
    )
    for sentence, points in grouped(undecided).items():
        each_once = list({point.name: point for point in points}.values())
        yield f"undecided at {named(each_once)}: {sentence}"


def _results(table: ComparisonTable) -> Iterator[str]:
    """Yield which results differ from the baseline's, with the first difference of each."""
    different = (
        (name, (point, agreement))
        for point in table.points
        for name, agreement in point.same_results.items()
        if agreement.same is False
    )
    for name, those in grouped(different).items():
        first, agreement = those[0]
        points = [point for point, _ in those]
        example = f"{named([first])}: {agreement}"
        several = f" ({counted(len(points), 'point')})" if len(points) > 1 else ""
        yield f"{name} {example}{several}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} measurements"


def _facts(table: ComparisonTable) -> dict[str, str]:
    facts = plan_facts(table.plan, "candidate")
    facts["baseline"] = table.plan.baseline
    facts["margin"] = f"{table.plan.margin:.2%}"
    return facts | common_conditions(table.measurements.values())


def figures(table: ComparisonTable) -> Iterator[Figure]:
    """Yield the figures, the most informative first."""
    if table.measurements:
        yield plot(table)
    if table.geomeans:
        yield geomeans_figure(table)
    yield from rooflines(
        ", ".join(table.candidates),
        (
            (name, f"{name} {point.name}", point.comparison.measurements[name])
            for point in table.points
            if point.comparison is not None
            for name in table.timed_at(point)
        ),
    )


def appendix(table: ComparisonTable) -> Iterator[Block]:
    """Yield the measurements, for a page."""
    yield from show_measurements.appendix(table.measurements)
