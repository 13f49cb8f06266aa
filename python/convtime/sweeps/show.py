"""What sweeps and comparisons over axes show alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from convtime.sweeps.plan import Point
from convtime.sweeps.table import DRIFT_MARGIN, PointTable
from convtime.timing import show_measurements
from convtime.timing.measurement import CONDITIONS
from convtime.timing.roofline import rooflines
from convtime.timing.show import facts_of, grouped, reservations
from convtime.view.figure import Figure
from convtime.view.page import Block, Table
from convtime.view.wording import counted

_MOST_NAMED = 3  # in a sentence


def title_of(table: PointTable[Any]) -> str:
    """Return the applications, and the number of values of each axis."""
    axes = " × ".join(f"{len(values)} {axis}" for axis, values in table.plan.axes.items())
    return f"{', '.join(table.plan.applications)}: {axes}"


def names_or_count(names: Sequence[str], plural: str = "points") -> str:
    """Return a few names, or the number of many."""
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} {plural}"


def not_measured(table: PointTable[Any]) -> Iterator[str]:
    """Yield a sentence about the points that an interrupted run lacks."""
    if table.missing:
        yield (
            f"{names_or_count([point.name for point in table.missing])} not measured: the run was "
            "interrupted; call it again with its file to resume"
        )


def cautions(table: PointTable[Any], plural: str) -> Iterator[str]:
    """Yield how steady the workers were, and reservations about measurements.

    Args:
        table: the result.
        plural: the word for several measurements.
    """
    yield _drift(table)
    yield from _workers(table)
    reserved = (
        (reservation, name)
        for name, measured in table.measurements.items()
        for reservation in reservations(measured)
    )
    for reservation, names in grouped(reserved).items():
        yield f"{reservation}: {names_or_count(names, plural)}"


def _drift(table: PointTable[Any]) -> str:
    drift = table.drift()
    if drift is None:
        errors = (error for point in table.controls for error in point.failures.values())
        error = next(errors, "")
        reason = f"it failed: {error}" if error else "it was measured fewer than two times"
        return f"drift is unknown: the control is {table.control}, and {reason}"
    if drift.ratio is None:
        return f"drift is unknown: the control is {drift.name}, and {drift.sentence}"
    if drift.verdict == "same":
        conclusion = f"the machine was stable within {DRIFT_MARGIN:.0%}"
    elif drift.verdict == "uncertain":
        conclusion = f"the machine's stability is uncertain: {drift.sentence}"
    else:
        conclusion = (
            f"WARNING: the machine became {drift.verdict} during the run, by more than "
            f"{DRIFT_MARGIN:.0%}; drift alone may explain smaller differences between points"
        )
    ratio = f"{drift.ratio} of its initial time by the end"
    return f"drift: {drift.name} ran at {ratio}; {conclusion}"


def _workers(table: PointTable[Any]) -> Iterator[str]:
    workers = table.workers()
    if workers and {change.verdict for change in workers.values()} == {"same"}:
        yield (
            f"{len(workers) + 1} workers took equally long for the control, within "
            f"{DRIFT_MARGIN:.0%}"
        )
        return
    for worker, change in workers.items():
        ratio = (
            f"worker {worker} took {change.ratio} of the time of worker {table.typical_worker} "
            "for the control"
        )
        if change.verdict in ("slower", "faster"):
            points = counted(sum(point.worker == worker for point in table.points), "point")
            yield (
                f"WARNING: {ratio}: it is {change.verdict} by more than {DRIFT_MARGIN:.0%}, and "
                f"so are the times of its {points}"
            )
        elif change.verdict != "same":
            yield f"{ratio}; whether it is as fast is uncertain: {change.sentence}"


def controls(
    table: PointTable[Point],
    headers: Sequence[str],
    cells: Callable[[Point], Sequence[str]],
    title: str = "",
) -> Table:
    """Return the visits of the control in order of time, with these cells."""
    rows = [[f"{point.visit + 1}", *cells(point), point.worker] for point in table.controls]
    return Table(["visit", *headers, "worker"], rows, right=["visit", *headers], title=title)


def facts(table: PointTable[Any], application: str, **own: str) -> dict[str, str]:
    """Return the facts of the plan, and the conditions that all measurements share.

    Args:
        table: the result.
        application: the word for an application.
        own: the facts that only plans of this type have.
    """
    plan = table.plan
    facts = {f"{application} {name}": identity for name, identity in plan.applications.items()}
    facts |= {f"axis {axis}": ", ".join(map(str, values)) for axis, values in plan.axes.items()}
    if plan.options:
        facts["options"] = ", ".join(f"{name}={value}" for name, value in plan.options.items())
    facts |= {
        "seed": f"{plan.seed}, for the order of the points",
        "machine": ", ".join(f"{part} {value}" for part, value in plan.machine.items()),
        **own,
    }
    sheets = [facts_of(measured) for measured in table.measurements.values()]
    for condition in (*CONDITIONS, "device"):
        values = {sheet.get(condition) for sheet in sheets}
        if len(values) == 1 and None not in values:
            facts[condition] = str(values.pop())
    return facts


def roofline_figures(table: PointTable[Any]) -> Iterator[Figure]:
    """Yield the rooflines of all measurements, with a series for each application."""
    yield from rooflines(
        ", ".join(table.plan.applications),
        (
            (name, f"{name} {point.position}", point.measurements[name])
            for point in table.points
            for name in table.timed_at(point)
        ),
    )


def appendix(table: PointTable[Any]) -> Iterator[Block]:
    yield from show_measurements.each_of(table.measurements)
