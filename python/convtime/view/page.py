"""Blocks that describe how a result is shown, for text and for HTML alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from convtime.view.figure import Figure

#: Content of a table cell: one or several lines of text.
Cell = str | Sequence[str]

#: ``answer``: the result in words. ``caution``: requests that were not met, and limits of the
#: answer. Pages show both without a click, and the answer first.
Role = Literal["", "answer", "caution"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Block:
    """What all blocks have.

    Args:
        title: shown above the content, even if there is none; empty for no title.
        indent: in text, number of spaces before each line of the content. Default: 2 below a
            title, else 0.
        tight: whether no empty line separates the block from the one before, in text.
        role: what the block is for the reader of a page.
    """

    title: str = ""
    indent: int | None = None
    tight: bool = False
    role: Role = ""


@dataclasses.dataclass(frozen=True)
class Line(_Block):
    text: str


@dataclasses.dataclass(frozen=True)
class Facts(_Block):
    named: Mapping[str, Cell]


@dataclasses.dataclass(frozen=True)
class Table(_Block):
    """Rows with one cell per column; without rows, nothing is shown.

    Args:
        headers: headers of the columns; empty for a table without headers.
        rows: content of the cells.
        right: headers of right-aligned columns.
        footers: number of last rows that summarize the others; a page sorts and filters only those.
        figures: for each row, figures that a report opens below it; empty for none. Only a report
            iterates over them.
    """

    headers: Sequence[str]
    rows: Iterable[Sequence[Cell]]
    right: Collection[str] = ()
    footers: int = 0
    figures: Iterable[Sequence[Figure]] = ()


@dataclasses.dataclass(frozen=True)
class Sentences(_Block):
    texts: Iterable[str]


@dataclasses.dataclass(frozen=True)
class Details(_Block):
    """Blocks that HTML collapses.

    Args:
        blocks: the content.
        summary: what HTML shows of it. Default: the title, or else "details".
    """

    blocks: Iterable[Block]
    summary: str = ""


Block = Line | Facts | Table | Sentences | Details


def answer_first(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks with the answer first and details last, otherwise in the same order."""

    def rank(block: Block) -> int:
        return 0 if block.role == "answer" else 2 if isinstance(block, Details) else 1

    return sorted(blocks, key=rank)


def alike_first(sheets: Mapping[str, Mapping[str, Cell]], what: str) -> Iterator[Details]:
    """Yield the facts that all sheets share, and a row per sheet with the others."""
    names = dict.fromkeys(name for sheet in sheets.values() for name in sheet)
    columns = {name: [sheet.get(name, "–") for sheet in sheets.values()] for name in names}
    alike = {
        name: column[0]
        for name, column in columns.items()
        if all(cell == column[0] for cell in column)
    }
    others = [name for name in names if name not in alike]
    blocks: list[Block] = [Facts(alike)] if alike else []
    if others:
        rows = zip(sheets, *(columns[name] for name in others), strict=True)
        blocks.append(Table(["name", *others], [*rows], title="not alike"))
    if blocks:
        yield Details(blocks, title=what)
