"""Show several measurements: a row for each, and what is alike and different about them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from convtime.timing import show
from convtime.timing.measurement import Measurement, Measurements
from convtime.timing.roofline import rooflines
from convtime.timing.show import estimate, facts_of, reservations
from convtime.view.figure import Figure
from convtime.view.page import Block, Cell, Details, Line, Sentences, Table, alike_first
from convtime.view.wording import counted, format_seconds

_ROWS = ("name", "median [95 %]", "least .. most", "samples", "but")
_FIGURES = 2  # of a row: the distribution, and the samples over time
_SHOWN_IN_ROWS = ("median", "95 % interval", "range", "samples")


def line(measurements: Mapping[str, Measurement]) -> str:
    """Return their number, and the range of their medians."""
    medians = [measured.median for measured in measurements.values()]
    ends = f"{format_seconds(min(medians))} to {format_seconds(max(medians))}"
    return f"{counted(len(medians), 'measurement')}, with medians from {ends}"


def printed(measurements: Measurements) -> Iterator[Block]:
    """Yield a line for each."""
    yield Sentences([show.line(measured) for measured in measurements.values()])


def details(measurements: Mapping[str, Measurement]) -> Iterator[Block]:
    """Yield :func:`line`, a row for each, which opens its figures, and the facts of all."""
    yield Line(line(measurements), role="answer")
    yield _table(measurements)
    sheets: dict[str, Mapping[str, Cell]] = {
        name: {
            fact: text for fact, text in facts_of(measured).items() if fact not in _SHOWN_IN_ROWS
        }
        for name, measured in measurements.items()
    }
    yield from alike_first(sheets, "conditions")


def figures(measurements: Measurements) -> Iterator[Figure]:
    """Yield the rooflines."""
    named = (("measurements", name, measured) for name, measured in measurements.items())
    yield from rooflines("all measurements", named)


def each_of(measurements: Mapping[str, Measurement]) -> Iterator[Block]:
    """Yield what a page of another result has of its measurements."""
    if measurements:
        yield Details([*details(measurements)], title="each measurement")


def _table(measurements: Mapping[str, Measurement]) -> Table:
    rows = [
        (
            name,
            estimate(measured),
            f"{format_seconds(measured.min)} .. {format_seconds(measured.max)}",
            str(len(measured.seconds)),
            [*reservations(measured)],
        )
        for name, measured in measurements.items()
    ]
    each = ([*itertools.islice(item.figures(), _FIGURES)] for item in measurements.values())
    return Table(_ROWS, rows, right=_ROWS[1:4], figures=each)
