"""Render a page as HTML; all text is escaped.

The page's own colors apply, which makes results readable in light and dark themes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from html import escape

from convtime.view.page import Block, Cell, Details, Facts, Line, Sentences, Table
from convtime.view.wording import shortened


def render(blocks: Iterable[Block]) -> str:
    """Return a page as HTML for a notebook."""
    return Writer().render(blocks)


class Writer:
    """Writes HTML for notebooks, whose own style sheets would align all cells to the right."""

    def render(self, blocks: Iterable[Block]) -> str:
        return "".join(map(self.block, blocks))

    def block(self, block: Block) -> str:
        match block:
            case Line(text):
                return paragraph(text)
            case Facts(named):
                rows = [
                    f"<tr>{self.cell('th', name)}{self.cell('td', fact)}</tr>"
                    for name, fact in named.items()
                ]
                return self.table(block.title, "", rows)
            case Table():
                return self.rows(block)
            case Sentences(texts):
                items = "".join(f"<li>{safe(text)}</li>" for text in texts)
                return self.titled(block.title) + (f"<ul>{items}</ul>" if items else "")
            case Details(blocks, summary):
                label = safe(summary or block.title or "details")
                return f"<details><summary>{label}</summary>{self.render(blocks)}</details>"

    def rows(self, table: Table) -> str:
        rows = [
            f"<tr{attributes}>{self.cells('td', row, table.headers or row, table.right)}</tr>"
            for row, attributes in zip(table.rows, self.row_attributes(table), strict=False)
        ]
        head = self.cells("th", table.headers, table.headers, table.right)
        body, foot = rows[: len(rows) - table.footers], rows[len(rows) - table.footers :]
        return self.table(table.title, f"<tr>{head}</tr>" if table.headers else "", body, foot)

    def cells(
        self, kind: str, cells: Sequence[Cell], headers: Sequence[Cell], right: Collection[str]
    ) -> str:
        pairs = zip(headers, cells, strict=True)
        return "".join(self.cell(kind, cell, right=header in right) for header, cell in pairs)

    def cell(self, kind: str, content: Cell, *, right: bool = False) -> str:
        lines = [content] if isinstance(content, str) else content
        return f"<{kind}{self.side(lines, right=right)}>{'<br>'.join(map(safe, lines))}</{kind}>"

    def titled(self, title: str) -> str:
        return paragraph(title)

    def table(self, title: str, head: str, rows: Sequence[str], foot: Sequence[str] = ()) -> str:
        if not rows:
            return self.titled(title)
        caption = f"<caption>{safe(title)}</caption>" if title else ""
        return f"<table>{caption}{head}{''.join((*rows, *foot))}</table>"

    def side(self, lines: Sequence[str], *, right: bool) -> str:  # noqa: ARG002
        """Return the attribute that aligns a cell."""
        return f" style='text-align:{'right' if right else 'left'}'"

    def row_attributes(self, table: Table) -> Iterator[str]:  # noqa: ARG002
        return itertools.repeat("")


def paragraph(text: str) -> str:
    return f"<p>{safe(text)}</p>" if text else ""


def safe(text: str) -> str:
    """Escape text for HTML, and replace control characters such as text direction marks."""
    return escape(shortened(text))
