"""The part of a page that shows one result: its blocks in order, and its figures."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from convtime.core.figure import Figure
from convtime.core.page import Block, Cell, Details, Facts, Line, Table, answer_first
from convtime.core.shown import Shown, blocks_of
from convtime.core.text import counted
from convtime.core.units import format_seconds
from convtime.exchange.files import Found, measurements_of
from convtime.timing.measurement import Measurement
from convtime.timing.roofline import rooflines
from convtime.timing.show import estimate, facts_of, reservations

_ROWS = ("name", "median [95 %]", "least .. most", "samples", "but")
_FIGURES = 2  # of a row: the distribution, and the samples over time
_SHOWN_IN_ROWS = ("median", "95 % interval", "range", "samples")


@dataclasses.dataclass(frozen=True)
class Section:
    """One result of a page.

    Attributes:
        title: name of the result.
        kind: type of the result.
        above: the answer in words, tables and notes.
        figures: figures between them and the details.
        below: details that a click opens, provenance last.
    """

    title: str
    kind: str
    above: Sequence[Block]
    figures: Sequence[Figure]
    below: Sequence[Block]


def section_of(title: str, found: Found) -> Section:
    """Return the section of a result, or of several measurements by name."""
    found = _single(found)
    blocks = every_block(found)
    if isinstance(found, Mapping):
        kind = counted(len(found), "measurement")
    else:
        kind = type(found).__name__
        measurements = measurements_of(found)
        if measurements and not isinstance(found, Measurement):
            blocks.append(Details([*_each(measurements)], title="each measurement"))
    ordered = answer_first(blocks)
    above = [block for block in ordered if not isinstance(block, Details)]
    # A summary is the answer, which is shown above.
    below = [
        dataclasses.replace(block, summary="") for block in ordered if isinstance(block, Details)
    ]
    return Section(title, kind, above, _figures(found), [*below, *_provenance(found)])


def every_block(found: Found) -> list[Block]:
    """Return the blocks of a result, or of several measurements by name, with an answer."""
    found = _single(found)
    return [*_each(found)] if isinstance(found, Mapping) else blocks_of(found)


def _single(found: Found) -> Found:
    """Return the only measurement of several."""
    return next(iter(found.values())) if isinstance(found, Mapping) and len(found) == 1 else found


def _figures(found: Found) -> list[Figure]:
    if isinstance(found, Mapping):
        named = (("measurements", name, measured) for name, measured in found.items())
        return [*rooflines("all measurements", named)]
    return [*found.figures()] if isinstance(found, Shown) else []


def _each(measurements: Mapping[str, Measurement]) -> Iterator[Block]:
    """Yield a row per measurement, which opens its figures, and the facts of all."""
    medians = [measured.median for measured in measurements.values()]
    ends = f"{format_seconds(min(medians))} to {format_seconds(max(medians))}"
    yield Line(f"{counted(len(medians), 'measurement')}, with medians from {ends}", role="answer")
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
    figures = ([*itertools.islice(each.figures(), _FIGURES)] for each in measurements.values())
    yield Table(_ROWS, rows, right=_ROWS[1:4], figures=figures)
    sheets: dict[str, Mapping[str, Cell]] = {
        name: {fact: told for fact, told in facts_of(each).items() if fact not in _SHOWN_IN_ROWS}
        for name, each in measurements.items()
    }
    yield from _sheets(sheets, "conditions")


def _sheets(sheets: Mapping[str, Mapping[str, Cell]], what: str) -> Iterator[Details]:
    """Yield the facts that all sheets share, and a row per sheet with the others."""
    names = dict.fromkeys(name for sheet in sheets.values() for name in sheet)
    columns = {name: [sheet.get(name, "–") for sheet in sheets.values()] for name in names}
    alike = {name: column[0] for name, column in columns.items() if _all_equal(column)}
    others = [name for name in names if name not in alike]
    blocks: list[Block] = [Facts(alike)] if alike else []
    if others:
        rows = [
            [title, *(columns[name][place] for name in others)]
            for place, title in enumerate(sheets)
        ]
        blocks.append(Table(["name", *others], rows, title="not alike"))
    if blocks:
        yield Details(blocks, title=what)


def _all_equal(values: Sequence[Cell]) -> bool:
    return all(value == values[0] for value in values)


def _provenance(found: Found) -> Iterator[Details]:
    """Yield hardware, software and source state, by measurement where they differ."""
    known = provenances(found)
    sheets = {name: written(provenance) for name, provenance in known.items()}
    yield from _sheets(sheets, "provenance")


def provenances(found: Found) -> dict[str, Mapping[str, Any]]:
    """Return the provenance of a result, or of each of its measurements, by name."""
    own = getattr(found, "provenance", None)
    if own is not None:
        return {"": own}
    return {name: each.provenance for name, each in measurements_of(found).items()}


def written(provenance: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the known entries of a provenance as text."""
    return {
        name.replace("_", " "): _text(value)
        for name, value in provenance.items()
        if value is not None
    }


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
