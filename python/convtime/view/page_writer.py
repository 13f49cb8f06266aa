"""Write blocks as the HTML of a page whose Content-Security-Policy allows no inline style."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from convtime.view import html
from convtime.view.figure import Figure, config
from convtime.view.page import Block, Table
from convtime.view.wording import shortened

_SHORT = 32  # characters of a line that is not broken, such as a time with its interval


class PageWriter(html.Writer):
    """Writes blocks, and collects the figures that the page draws when they come into view."""

    def __init__(self) -> None:
        self._figures: list[Figure] = []

    def block(self, block: Block) -> str:
        content = super().block(block)
        return f'<div class="{block.role}">{content}</div>' if block.role and content else content

    def titled(self, title: str) -> str:
        return f"<h3>{html.safe(title)}</h3>" if title else ""

    def table(self, title: str, head: str, rows: Sequence[str], foot: Sequence[str] = ()) -> str:
        if not rows:
            return self.titled(title)
        told = html.safe(title or "table")
        caption = f"<caption>{told}</caption>" if title else ""
        parts = {"thead": head, "tbody": "".join(rows), "tfoot": "".join(foot)}
        content = "".join(f"<{tag}>{part}</{tag}>" for tag, part in parts.items() if part)
        # Focusable, so that a keyboard can scroll it.
        return (
            f'<div class="table" role="group" aria-label="{told}" tabindex="0">'
            f"<table>{caption}{content}</table></div>"
        )

    def side(self, lines: Sequence[str], *, right: bool) -> str:
        if right:
            return ' class="right"'
        return ' class="short"' if all(len(line) <= _SHORT for line in lines) else ""

    def row_attributes(self, table: Table) -> Iterator[str]:
        for figures in table.figures:
            yield f' data-figures="{" ".join(str(self._collect(each)) for each in figures)}"'
        yield from itertools.repeat("")

    def figure(self, figure: Figure) -> str:
        """Return the place of a figure, which the page draws."""
        return f'<div data-figure="{self._collect(figure)}"></div>'

    def data(self) -> str:
        """Return the collected figures as JSON.

        A view without its data is stored once: it is the same for a thousand measurements.
        """
        views: dict[str, int] = {}
        figures = []
        for figure in self._figures:
            values: list[Any] = []
            view = json.dumps(_without_values(figure.view, values), ensure_ascii=False)
            place = views.setdefault(view, len(views))
            told = map(shortened, (figure.title, figure.key, figure.description))
            figures.append([*told, place, values])
        document = {
            "config": config("currentColor"),
            "views": [json.loads(view) for view in views],
            "figures": figures,
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def _collect(self, figure: Figure) -> int:
        self._figures.append(figure)
        return len(self._figures) - 1


def _without_values(part: Any, values: list[Any]) -> Any:
    """Return a part of a view with numbers in place of its data, which are appended in order."""
    if isinstance(part, dict):
        found = {}
        for name, value in part.items():
            if name == "values" and isinstance(value, list):
                values.append(value)
                found[name] = len(values) - 1
            else:
                found[name] = _without_values(value, values)
        return found
    if isinstance(part, list):
        return [_without_values(each, values) for each in part]
    return part
