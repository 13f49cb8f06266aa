"""Render a page as HTML; all text is escaped.

The page's own colors apply, which makes results readable in light and dark themes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

from convtime.core.page import Block, Cell, Details, Facts, Line, Sentences, Table
from convtime.core.text import printable


def render(blocks: Iterable[Block]) -> str:
    """Return a page as HTML."""
    return "".join(map(_block, blocks))


def _block(block: Block) -> str:
    match block:
        case Line(text):
            return _paragraph(text)
        case Facts(named):
            rows = [_cell("th", name) + _cell("td", fact) for name, fact in named.items()]
            return _table(block.title, rows)
        case Table(headers, cells, right):
            rows = [_row("td", row, headers or row, right) for row in cells]
            heads = [_row("th", headers, headers, right)] if headers and rows else []
            return _table(block.title, heads + rows)
        case Sentences(texts):
            items = "".join(f"<li>{_safe(text)}</li>" for text in texts)
            return _paragraph(block.title) + (f"<ul>{items}</ul>" if items else "")
        case Details(blocks, summary):
            told = _safe(summary or block.title or "details")
            return f"<details><summary>{told}</summary>{render(blocks)}</details>"


def _paragraph(text: str) -> str:
    return f"<p>{_safe(text)}</p>" if text else ""


def _table(title: str, rows: Sequence[str]) -> str:
    if not rows:
        return _paragraph(title)
    caption = f"<caption>{_safe(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _row(kind: str, cells: Sequence[Cell], headers: Sequence[Cell], right: Collection[str]) -> str:
    pairs = zip(headers, cells, strict=True)
    return "".join(
        _cell(kind, cell, "right" if header in right else "left") for header, cell in pairs
    )


def _cell(kind: str, content: Cell, side: str = "left") -> str:
    lines = [content] if isinstance(content, str) else content
    return f"<{kind} style='text-align:{side}'>{'<br>'.join(map(_safe, lines))}</{kind}>"


def _safe(text: str) -> str:
    """Escape text for HTML, and replace control characters such as text direction marks."""
    return escape(printable(text))
