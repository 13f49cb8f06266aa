"""Human-readable text: safe to print, and no wider than the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from convtime.view.page import Block, Cell, Details, Facts, Line, Sentences, Table
from convtime.view.wording import printable

_UNBOUNDED = 100_000  # columns
# Minimum widths to which long words may be broken, tried in this order until the table fits.
_LONG_WORDS = (40, 20, 12)
_GAP = 2  # between columns


def render(blocks: Iterable[Block], indent: int = 0) -> str:
    """Return a page as text, with an empty line between blocks."""
    page = ""
    for block in blocks:
        below = block.indent
        if below is None:
            below = 2 if block.title else 0
        title = " " * indent + printable(block.title) if block.title else ""
        if lines := "\n".join(filter(None, (title, _content(block, indent + below)))):
            page += ("\n" if block.tight else "\n\n") * bool(page) + lines
    return page


def _content(block: Line | Facts | Table | Sentences | Details, indent: int) -> str:
    match block:
        case Line(text):
            return " " * indent + printable(text)
        case Facts(named):
            facts = [(f"{name}:", fact) for name, fact in named.items()]
            return table((), facts, indent=indent)
        case Table(headers, cells, right):
            rows = [*cells]
            return table(headers, rows, right=right, indent=indent) if rows else ""
        case Sentences(texts):
            return table((), [(text,) for text in texts], indent=indent)
        case Details(blocks):
            return render(blocks, indent)


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    right: Collection[str] = (),
    indent: int = 0,
) -> str:
    """Return a table; cells wrap if the terminal is narrow.

    Args:
        headers: headers of the columns; empty for a table without headers.
        rows: rows with one cell per column.
        right: headers of right-aligned columns.
        indent: number of spaces before each line.
    """
    rows = [*rows]
    lines: list[Sequence[Cell]] = [headers, *rows] if headers else rows
    if not lines:
        return ""
    drawn = Grid(
        box=box.SIMPLE_HEAD if headers else None,
        show_header=bool(headers),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1 if headers else _GAP, 0, 0),
    )
    sides: list[Literal["left", "right"]] = [
        "right" if header in right else "left" for header in lines[0]
    ]
    widths = _widths(lines, indent, [side == "right" for side in sides])
    for header, side, width in zip(lines[0], sides, widths, strict=True):
        drawn.add_column(_text(header), justify=side, overflow="fold", width=width)
    for row in rows:
        drawn.add_row(*map(_text, row))
    console = Console(
        file=StringIO(),
        width=_UNBOUNDED,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(drawn)
    return "\n".join((" " * indent + line).rstrip() for line in captured.get().splitlines())


def _text(cell: Cell) -> Text:
    return Text("\n".join(_lines(cell)))


def _lines(cell: Cell) -> list[str]:
    return [printable(line) for line in ([cell] if isinstance(cell, str) else cell)]


def _widths(rows: Sequence[Sequence[Cell]], indent: int, are_numbers: Sequence[bool]) -> list[int]:
    """Return the width of each column; on a narrow terminal, text columns shrink first."""
    texts = [
        [line for cell in column for line in _lines(cell)] for column in zip(*rows, strict=True)
    ]
    available = _terminal_width() - indent - _GAP * (len(texts) - 1)
    widths = [min(max(map(cell_len, column), default=0), available) for column in texts]
    words = [[word for line in column for word in line.split()] for column in texts]
    longest = [max(map(cell_len, column), default=0) for column in words]
    for step, most in enumerate(_LONG_WORDS):
        least = [
            (width if step == 0 else word) if is_number else min(word, most)
            for width, word, is_number in zip(widths, longest, are_numbers, strict=True)
        ]
        _shrink(widths, least, available)
    return [max(pair) for pair in zip(widths, least, strict=True)]


def _shrink(widths: list[int], least: Sequence[int], available: int) -> None:
    """Narrow the widest column by one, repeatedly, until all fit or none can shrink."""
    while sum(widths) > available:
        shrinkable = [index for index, width in enumerate(widths) if width > least[index]]
        if not shrinkable:
            return
        widths[max(shrinkable, key=widths.__getitem__)] -= 1


def _terminal_width() -> int:
    """Return the width of the terminal in columns; unbounded for a file or a pipe."""
    stream = sys.stdout
    is_terminal = stream is not None and not stream.closed and stream.isatty()
    return shutil.get_terminal_size().columns if is_terminal else _UNBOUNDED
