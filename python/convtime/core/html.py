"""Build HTML tables and lists; all text is escaped.

The page's own colors apply, which makes results readable in light and dark themes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from convtime.core.text import Cell, printable


def facts(title: str, named: Mapping[str, Cell]) -> str:
    """Return a table with one row per fact."""
    rows = "".join(
        f"<tr>{_cell('th', name)}{_cell('td', value)}</tr>" for name, value in named.items()
    )
    return f"<table><caption>{_safe(title)}</caption>{rows}</table>"


def table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "") -> str:
    """Return a table with headers and an optional title."""
    lines = ["".join(_cell("th", header) for header in headers)]
    lines += ["".join(_cell("td", cell) for cell in row) for row in rows]
    caption = f"<caption>{_safe(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def items(texts: Iterable[str]) -> str:
    """Return a list; an empty string if there are no items."""
    told = "".join(f"<li>{_safe(text)}</li>" for text in texts)
    return f"<ul>{told}</ul>" if told else ""


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{_safe(text)}</p>"


def hidden(summary: str, content: str) -> str:
    """Return content that is collapsed under a summary; the content must be HTML."""
    return f"<details><summary>{_safe(summary)}</summary>{content}</details>"


def _safe(text: str) -> str:
    """Escape text for HTML, and replace control characters such as text direction marks."""
    return escape(printable(text))


def _cell(kind: str, content: Cell) -> str:
    lines = [content] if isinstance(content, str) else content
    return f"<{kind} style='text-align:left'>{'<br>'.join(map(_safe, lines))}</{kind}>"
