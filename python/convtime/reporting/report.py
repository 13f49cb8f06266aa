"""Write a page of results: one file of HTML that needs no network and no server."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from convtime.core import html
from convtime.core.errors import MissingPackageError
from convtime.core.files import extension_of, write_file
from convtime.core.page import Block, Sentences
from convtime.exchange.files import Found
from convtime.reporting.runs import side_by_side
from convtime.reporting.section import Section, provenances, section_of
from convtime.reporting.writer import PageWriter

_NAMED = 3  # results in the title of the window


def check_page(path: str | os.PathLike[str]) -> None:
    """Check that a page can be written to a file of this name.

    Raises:
        InputError: the extension is not ``.html``, or the package with the plots is missing.
    """
    extension_of(path, (".html",))
    _bundler()


def write_page(
    results: Mapping[str, Found],
    path: str | os.PathLike[str],
    notes: Iterable[str] = (),
) -> None:
    """Write a page of results; two are also compared with each other.

    Args:
        results: the results by title.
        path: the file; it ends in ``.html`` or has no extension.
        notes: sentences at the top of the page.

    Raises:
        InputError: the path has another extension, the file cannot be written, or the package with
            the plots is missing.
    """
    check_page(path)
    write_file(path, page_of(results, notes))


def page_of(results: Mapping[str, Found], notes: Iterable[str] = ()) -> str:
    """Return the page of results as HTML."""
    writer = PageWriter()
    said = [*notes, *_different_hardware(results)]
    blocks: list[Block] = [Sentences(said, role="caution")] if said else []
    if len(results) == 2:
        blocks += side_by_side(*results.items())
    sections = [section_of(title, found) for title, found in results.items()]
    main = writer.render(blocks)
    main += '<div class="two">' if len(sections) == 2 else "<div>"
    level = 1 if len(sections) == 1 else 2
    for place, section in enumerate(sections):
        main += _section(writer, f"result-{place}", section, level)
    return _document([section.title for section in sections], f"{main}</div>", writer.data())


def _different_hardware(results: Mapping[str, Found]) -> list[str]:
    """Return a sentence if results next to each other are from different GPUs or CPUs."""
    by_hardware: dict[str, dict[str, None]] = {}
    for title, found in results.items():
        for known in provenances(found).values():
            hardware = str(known.get("gpu") or known.get("cpu") or "unknown hardware")
            by_hardware.setdefault(hardware, {})[title] = None
    if len(by_hardware) < 2:
        return []
    told = "; ".join(f"{hardware}: {', '.join(titles)}" for hardware, titles in by_hardware.items())
    return [f"these results are from different hardware, so that times are not comparable: {told}"]


def _section(writer: PageWriter, anchor: str, section: Section, level: int) -> str:
    heading = f'<h{level} id="{anchor}">{html.safe(section.title)}</h{level}>'
    kind = f'<p class="kind">{html.safe(section.kind)}</p>'
    figures = "".join(map(writer.figure, section.figures))
    above, below = writer.render(section.above), writer.render(section.below)
    return f'<section aria-labelledby="{anchor}">{heading}{kind}{above}{figures}{below}</section>'


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
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed.

    Raises:
        MissingPackageError: the package that contains it is missing.
    """
    bundle: str = _bundler().javascript_bundle()
    return bundle.replace("</script", "<\\/script")


def _bundler() -> Any:
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "reports require vl-convert-python, which is not installed; run pip install "
            "'convtime[plot]'"
        ) from error
    return vl_convert


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
