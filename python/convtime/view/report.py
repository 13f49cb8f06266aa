"""Write a page of results: one file of HTML that needs no network and no server."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from convtime.view import html
from convtime.view.figure import Figure, config, json_of
from convtime.view.page import Block, Cell, Details, Table, alike_first, answer_first
from convtime.view.wording import shortened

#: Extensions of the files of pages.
PAGE_EXTENSIONS = (".html",)

_NAMED = 3  # results in the title of the window
_SHORT = 32  # characters of a line that is not broken, such as a time with its interval


@dataclasses.dataclass(frozen=True)
class Section:
    """One result of a page.

    Attributes:
        title: name of the result.
        kind: type of the result.
        blocks: the result in words and tables; details open on a click.
        figures: figures between the answer and the details.
        provenances: hardware, software and source state, by measurement.
    """

    title: str
    kind: str
    blocks: Sequence[Block]
    figures: Sequence[Figure]
    provenances: Mapping[str, Mapping[str, Any]]


def page_of(sections: Sequence[Section], above: Iterable[Block] = ()) -> str:
    """Return a page of results as HTML, with these blocks at its top."""
    writer = _PageWriter()
    main = writer.render(above)
    main += '<div class="two">' if len(sections) == 2 else "<div>"
    level = 1 if len(sections) == 1 else 2
    for number, section in enumerate(sections):
        main += _section(writer, f"result-{number}", section, level)
    return _document([section.title for section in sections], f"{main}</div>", writer.data())


class _PageWriter(html.Writer):
    """Writes blocks, and collects the figures that the page draws when they come into view.

    The page's Content-Security-Policy allows no inline style.
    """

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
        label = html.safe(title or "table")
        caption = f"<caption>{label}</caption>" if title else ""
        parts = {"thead": head, "tbody": "".join(rows), "tfoot": "".join(foot)}
        content = "".join(f"<{tag}>{part}</{tag}>" for tag, part in parts.items() if part)
        # Focusable, so that a keyboard can scroll it.
        return (
            f'<div class="table" role="group" aria-label="{label}" tabindex="0">'
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
            position = views.setdefault(view, len(views))
            texts = map(shortened, (figure.title, figure.key, figure.description))
            figures.append([*texts, position, values])
        document = {
            "config": config("currentColor"),
            "views": [json.loads(view) for view in views],
            "figures": figures,
        }
        return json_of(document)

    def _collect(self, figure: Figure) -> int:
        self._figures.append(figure)
        return len(self._figures) - 1


def _without_values(part: Any, values: list[Any]) -> Any:
    """Return a part of a view with numbers in place of its data, which are appended in order."""
    if isinstance(part, dict):
        copied = {}
        for name, value in part.items():
            if name == "values" and isinstance(value, list):
                values.append(value)
                copied[name] = len(values) - 1
            else:
                copied[name] = _without_values(value, values)
        return copied
    if isinstance(part, list):
        return [_without_values(each, values) for each in part]
    return part


def _section(writer: _PageWriter, anchor: str, section: Section, level: int) -> str:
    blocks = answer_first(section.blocks)
    # A summary is the answer, which is shown above.
    below = [
        dataclasses.replace(block, summary="") for block in blocks if isinstance(block, Details)
    ]
    sheets = {
        name: provenance_facts(provenance) for name, provenance in section.provenances.items()
    }
    below += alike_first(sheets, "provenance")
    heading = f'<h{level} id="{anchor}">{html.safe(section.title)}</h{level}>'
    kind = f'<p class="kind">{html.safe(section.kind)}</p>'
    answer = writer.render(block for block in blocks if not isinstance(block, Details))
    figures = "".join(map(writer.figure, section.figures))
    content = f"{heading}{kind}{answer}{figures}{writer.render(below)}"
    return f'<section aria-labelledby="{anchor}">{content}</section>'


def provenance_facts(provenance: Mapping[str, Any]) -> dict[str, Cell]:
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


def _document(titles: Sequence[str], main: str, data: str) -> str:
    header = ""
    if len(titles) > 1:
        links = "".join(
            f'<li><a href="#result-{number}">{html.safe(title)}</a></li>'
            for number, title in enumerate(titles)
        )
        header = (
            f"<header><h1>{len(titles)} results</h1>"
            f'<nav aria-label="Results"><ul>{links}</ul></nav></header>'
        )
    style, script = _resource("page.css"), _resource("page.js")
    library = _resource("vega.js").replace("</script", r"<\/script")
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(script)}; "
        f"style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    # No tag can end the data: "<" only occurs in strings.
    data = data.replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>convtime: {html.safe(', '.join(titles[:_NAMED]))}</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n{header}<main>{main}</main>\n"
        f'<script type="application/json" id="figures">{data}</script>\n'
        f"<script>{library}</script>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
