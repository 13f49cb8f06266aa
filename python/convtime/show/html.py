"""Tables and lists as HTML, in which everything is escaped.

Colours are the page's own, so that results can be read in a light and in a dark theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from convtime.show.text import Cell, printable


def facts(title: str, named: Mapping[str, Cell]) -> str:
    """A table with a line for each fact."""
    rows = "".join(
        f"<tr>{_cell('th', name)}{_cell('td', value)}</tr>" for name, value in named.items()
    )
    return f"<table><caption>{_safe(title)}</caption>{rows}</table>"


def table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "") -> str:
    """A table with headers, and a title where there is one."""
    lines = ["".join(_cell("th", header) for header in headers)]
    lines += ["".join(_cell("td", cell) for cell in row) for row in rows]
    caption = f"<caption>{_safe(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def items(texts: Iterable[str]) -> str:
    """A list; nothing where it is empty."""
    told = "".join(f"<li>{_safe(text)}</li>" for text in texts)
    return f"<ul>{told}</ul>" if told else ""


def paragraph(text: str) -> str:
    """A sentence or two."""
    return f"<p>{_safe(text)}</p>"


def hidden(summary: str, content: str) -> str:
    """What is shown when its summary is clicked on; content is HTML already."""
    return f"<details><summary>{_safe(summary)}</summary>{content}</details>"


def _safe(text: str) -> str:
    """Escaped for HTML, and without what turns the direction of writing, for example."""
    return escape(printable(text))


def _cell(kind: str, content: Cell) -> str:
    lines = [content] if isinstance(content, str) else content
    return f"<{kind} style='text-align:left'>{'<br>'.join(map(_safe, lines))}</{kind}>"
