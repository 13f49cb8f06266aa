"""What sweeps and comparisons over axes show alike."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from convtime.sweeps.table import PointTable
from convtime.timing import show_measurements
from convtime.timing.roofline import rooflines
from convtime.timing.show import facts_of, grouped, reservations
from convtime.view.figure import Figure
from convtime.view.page import Block

_MOST_NAMED = 3  # in a sentence
# Facts of a measurement that describe its conditions.
_CONDITIONS = ("method", "queue", "cache", "placement", "pages", "regime", "device")


def title_of(table: PointTable[Any]) -> str:
    """Return the applications, and the number of values of each axis."""
    axes = " × ".join(f"{len(values)} {axis}" for axis, values in table.plan.axes.items())
    return f"{', '.join(table.plan.applications)}: {axes}"


def named(names: Sequence[str], plural: str = "points") -> str:
    """Return a few names, or the number of many."""
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} {plural}"


def not_measured(table: PointTable[Any]) -> Iterator[str]:
    """Yield a sentence about the points that an interrupted run lacks."""
    if table.missing:
        yield (
            f"{named([point.name for point in table.missing])} not measured: the run was "
            "interrupted; call it again with its file to resume"
        )


def cautions(table: PointTable[Any], plural: str) -> Iterator[str]:
    """Yield how steady the workers were, and reservations about measurements.

    Args:
        table: the result.
        plural: the word for several measurements.
    """
    yield from table.controlled.sentences(
        collections.Counter(point.worker for point in table.points)
    )
    reserved = (
        (reservation, name)
        for name, measured in table.measurements.items()
        for reservation in reservations(measured)
    )
    for reservation, names in grouped(reserved).items():
        yield f"{reservation}: {named(names, plural)}"


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
    facts["seed"] = f"{plan.seed}, for the order of the points"
    facts["machine"] = ", ".join(f"{part} {value}" for part, value in plan.machine.items())
    facts |= own
    sheets = [facts_of(measured) for measured in table.measurements.values()]
    for condition in _CONDITIONS:
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
    """Yield the measurements, for a page."""
    yield from show_measurements.appendix(table.measurements)
