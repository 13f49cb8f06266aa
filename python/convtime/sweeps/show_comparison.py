"""Show a ComparisonTable: points × candidates, the verdict in words, and all facts."""

from __future__ import annotations

from collections.abc import Iterator

from convtime.sweeps.comparison_table import ComparisonTable
from convtime.sweeps.plan import ComparisonPoint
from convtime.sweeps.plot import geomeans_figure
from convtime.sweeps.plot import table_figure as plot
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
from convtime.timing.show import estimate, grouped
from convtime.view.figure import Figure
from convtime.view.page import Block, Details, Facts, Sentences, Table
from convtime.view.wording import counted, printable

_FASTEST = "fastest"


def line(table: ComparisonTable) -> str:
    parts = [title_of(table), *table.verdict]
    if table.failed:
        parts.append(f"{counted(len(table.failed), 'point')} with failures")
    if table.missing:
        parts.append(f"{len(table.missing)} missing")
    return printable("; ".join(parts))


def printed(table: ComparisonTable) -> Iterator[Block]:
    headers = [*table.plan.axes, *table.candidates, _FASTEST]
    rows = [
        [
            *map(str, point.values.values()),
            *_times(table, point),
            str(table.outcomes.get(point.name, "")),
        ]
        for point in table.points
    ]
    means = table.geomeans
    if means and len(rows) > 1:
        cells = [str(means.get(name, 1)) for name in table.candidates]
        rows.append(["geomean", *[""] * (len(table.plan.axes) - 1), *cells, ""])
    yield Table(headers, rows, right=headers[:-1], footers=len(rows) - len(table.points))
    yield Sentences(table.verdict, role="answer")
    yield Sentences(map(str, table.crossovers), role="answer")
    yield Sentences(_notes(table), role="caution")


def details(table: ComparisonTable) -> Iterator[Block]:
    """Yield :func:`printed`, the ratios, the rates, the control's visits, and the plan."""
    yield from printed(table)
    plan = {"baseline": table.plan.baseline, "margin": f"{table.plan.margin:.2%}"}
    title = f"control: {table.plan.control.name}"
    visits = controls(table, table.candidates, lambda point: _times(table, point), title)
    facts_of_table = Facts(facts(table, "candidate", **plan))
    yield Details([_ratios(table), *_rates(table), visits, facts_of_table])


def _times(table: ComparisonTable, point: ComparisonPoint) -> list[str]:
    timed = point.measurements
    return [
        estimate(timed[name]) if name in timed else "failed" if name in point.errors else "–"
        for name in table.candidates
    ]


def _ratios(table: ComparisonTable) -> Table:
    others = [name for name in table.candidates if name != table.plan.baseline]
    rows = []
    for point in table.points:
        judgements = [table.against_baseline(point, name) for name in others]
        cells = [f"{judged.ratio} {judged.verdict}" if judged else "–" for judged in judgements]
        rows.append([*map(str, point.values.values()), *cells])
    headers = [*table.plan.axes, *others]
    return Table(headers, rows, right=headers, title=f"ratio to {table.plan.baseline} [95 %]")


def _rates(table: ComparisonTable) -> Iterator[Table]:
    """Yield the FLOP and byte rates, if any are known."""
    rows = []
    for row in table.to_rows():
        cells = []
        for quantity, scale, unit in (("flops", 1e-12, "TFLOP/s"), ("bytes", 1e-9, "GB/s")):
            rate, share = row.get(f"{quantity}_per_second"), row.get(f"{quantity}_share")
            cells.append("–" if rate is None else f"{scale * rate:.4g} {unit}")
            cells.append("–" if share is None else f"{share:.1%}")
        if set(cells) != {"–"}:
            rows.append([*(str(row[axis]) for axis in table.plan.axes), row["candidate"], *cells])
    if rows:
        headers = [*table.plan.axes, "candidate"]
        headers += ["compute", "of ceiling", "memory", "of ceiling"]
        title = "rates, and shares of the rates that a large matmul and a large copy reach"
        yield Table(headers, rows, right=headers, title=title)


def _notes(table: ComparisonTable) -> Iterator[str]:
    yield from not_measured(table)
    failures = (
        (f"{name} failed: {error}", point.name)
        for point in table.points
        for name, error in point.errors.items()
    )
    for failure, names in grouped(failures).items():
        yield f"{failure} ({names_or_count(names)})"
    complete = sum(len(table.timed_at(point)) == len(table.candidates) for point in table.points)
    if table.geomeans and complete < len(table.points):
        yield f"the geometric means cover the {complete} of {len(table.points)} complete points"
    undecided = (
        (judged.sentence, name)
        for name, outcome in table.outcomes.items()
        for judged in (
            table.judge(name, leader, outcome.fastest)
            for leader in outcome.leaders
            if leader != outcome.fastest
        )
        if judged.verdict == "uncertain"
    )
    for sentence, names in grouped(undecided).items():
        yield f"undecided at {names_or_count([*dict.fromkeys(names)])}: {sentence}"
    differences = (
        (name, f"{point.name}: {agreement}")
        for point in table.points
        for name, agreement in point.same_results.items()
        if agreement.same is False
    )
    for name, examples in grouped(differences).items():
        several = f" ({counted(len(examples), 'point')})" if len(examples) > 1 else ""
        yield f"{name} {examples[0]}{several}"
    yield from cautions(table, "measurements")


def figures(table: ComparisonTable) -> Iterator[Figure]:
    if table.measurements:
        yield plot(table)
    if table.geomeans:
        yield geomeans_figure(table)
    yield from roofline_figures(table)
