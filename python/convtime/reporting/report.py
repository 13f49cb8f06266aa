"""Write a page of results: one file of HTML that needs no network and no server."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from convtime.core import html
from convtime.core.errors import MissingPackageError
from convtime.core.files import extension_of, write_file
from convtime.core.page import Block, Sentences
from convtime.exchange.files import Found
from convtime.reporting.runs import side_by_side
from convtime.reporting.section import Section, provenances, section_of
from convtime.reporting.writer import PageWriter


def check_page(path: str | os.PathLike[str]) -> None:
    """Check that a page can be written to a file of this name.

    Raises:
        InputError: the extension is not ``.html``, or the package with the plots is missing.
    """
    extension_of(path, (".html",))
    _library()


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
    top = writer.render(blocks)
    parts = [_section(writer, place, section) for place, section in enumerate(sections)]
    return _document(sections, top, parts, writer.data())


def _different_hardware(results: Mapping[str, Found]) -> list[str]:
    """Return a sentence if results next to each other are from different GPUs or CPUs."""
    by_title = {
        title: {
            str(known.get("gpu") or known.get("cpu") or "unknown hardware")
            for known in provenances(found).values()
        }
        for title, found in results.items()
    }
    if len(set().union(*by_title.values())) < 2:
        return []
    told = "; ".join(
        f"{title}: {', '.join(sorted(hardware))}" for title, hardware in by_title.items() if hardware
    )
    return [f"these results are from different hardware, so that times are not comparable: {told}"]


def _section(writer: PageWriter, place: int, section: Section) -> str:
    figures = "".join(map(writer.figure, section.figures))
    above, below = writer.render(section.above), writer.render(section.below)
    heading = f'<h2 id="result-{place}">{html.safe(section.title)}</h2>'
    kind = f'<p class="kind">{html.safe(section.kind)}</p>'
    return (
        f'<section aria-labelledby="result-{place}">{heading}{kind}{above}{figures}{below}</section>'
    )


def _document(sections: Sequence[Section], top: str, parts: Sequence[str], data: str) -> str:
    titles = [section.title for section in sections]
    title = html.safe(f"convtime: {', '.join(titles)}")
    links = "".join(
        f'<li><a href="#result-{place}">{html.safe(name)}</a></li>'
        for place, name in enumerate(titles)
    )
    contents = f'<nav aria-label="Results"><ul>{links}</ul></nav>' if len(titles) > 1 else ""
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
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{title}</h1>{contents}</header>\n"
        f"<main>{top}<div class=\"results\">{''.join(parts)}</div></main>\n"
        f'<script type="application/json" id="figures">{data}</script>\n'
        f"<script>{library}</script>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _library() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed.

    Raises:
        MissingPackageError: vl-convert-python, which contains it, is missing.
    """
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "reports require vl-convert-python, which is not installed; run pip install "
            "'convtime[plot]'"
        ) from error
    bundle: str = vl_convert.javascript_bundle()
    return bundle.replace("</script", "<\\/script")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
