"""Write a page of results: one file of HTML that needs no network and no server."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from convtime.core.files import extension_of, write_file
from convtime.view import html
from convtime.view.figure import Figure
from convtime.view.page import Block, Cell, Details, alike_first, answer_first
from convtime.view.page_writer import PageWriter

_NAMED = 3  # results in the title of the window


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


def write_report(
    sections: Sequence[Section], path: str | os.PathLike[str], above: Iterable[Block] = ()
) -> None:
    """Write a page of results.

    Args:
        sections: the results.
        path: the file; it ends in ``.html`` or has no extension.
        above: blocks at the top of the page.

    Raises:
        InputError: the path has another extension, or the file cannot be written.
    """
    check_page(path)
    write_file(path, page_of(sections, above))


def check_page(path: str | os.PathLike[str]) -> None:
    """Check that a page can be written to a file of this name.

    Raises:
        InputError: the extension is not ``.html``.
    """
    extension_of(path, (".html",))


def page_of(sections: Sequence[Section], above: Iterable[Block] = ()) -> str:
    """Return the page of results as HTML."""
    writer = PageWriter()
    main = writer.render(above)
    main += '<div class="two">' if len(sections) == 2 else "<div>"
    level = 1 if len(sections) == 1 else 2
    for place, section in enumerate(sections):
        main += _section(writer, f"result-{place}", section, level)
    return _document([section.title for section in sections], f"{main}</div>", writer.data())


def _section(writer: PageWriter, anchor: str, section: Section, level: int) -> str:
    blocks = answer_first(section.blocks)
    # A summary is the answer, which is shown above.
    below = [
        dataclasses.replace(block, summary="") for block in blocks if isinstance(block, Details)
    ]
    below += _provenance(section)
    heading = f'<h{level} id="{anchor}">{html.safe(section.title)}</h{level}>'
    kind = f'<p class="kind">{html.safe(section.kind)}</p>'
    answer = writer.render(block for block in blocks if not isinstance(block, Details))
    figures = "".join(map(writer.figure, section.figures))
    content = f"{heading}{kind}{answer}{figures}{writer.render(below)}"
    return f'<section aria-labelledby="{anchor}">{content}</section>'


def _provenance(section: Section) -> Iterable[Details]:
    """Return hardware, software and source state, by measurement where they differ."""
    sheets = {name: written(provenance) for name, provenance in section.provenances.items()}
    return alike_first(sheets, "provenance")


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


def _document(titles: Sequence[str], main: str, data: str) -> str:
    header = ""
    if len(titles) > 1:
        links = "".join(
            f'<li><a href="#result-{place}">{html.safe(title)}</a></li>'
            for place, title in enumerate(titles)
        )
        header = (
            f"<header><h1>{len(titles)} results</h1>"
            f'<nav aria-label="Results"><ul>{links}</ul></nav></header>'
        )
    style, script, library = _resource("page.css"), _resource("page.js"), _library()
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


def _library() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed."""
    return _resource("vega.js").replace("</script", r"<\/script")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
