"""Builds the documentation's site: sphinx-build -W docs build/site.

The pages are those that the repository shows, in Markdown. The site adds a menu, a search, the
reference of all public functions from their docstrings, and reports: where a page has a comment
such as ``<!-- report: FILE.json -->``, it shows what ``convtime report`` makes of that file.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import convtime
from convtime.core.files import write_file
from convtime.reporting.report import page_of_results

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "convtime"
author = "the convtime authors"
version = release = convtime.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "convtime"
root_doc = "index"

myst_heading_anchors = 4
# Of links to folders of the repository, which are not in the site. Tests check that they exist.
suppress_warnings = ["myst.xref_missing"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"

_REPORT = re.compile(r"<!-- report: (\S+)\.json -->")
_FRAME = """```{{raw}} html
<iframe src="{name}.html" title="Report of {name}.json" loading="lazy"
 style="width: 100%; height: 40rem; border: 1px solid var(--color-background-border)"></iframe>
<p><a href="{name}.html">This report as a page of its own</a></p>
```"""


def show_reports(app: Sphinx, page: str, source: list[str]) -> None:
    """Write the report of each file that a page names, and show it there."""
    folder = PurePosixPath(page).parent

    def shown(match: re.Match[str]) -> str:
        name = match[1]
        found = convtime.load(Path(app.srcdir, folder, f"{name}.json"))
        target = Path(app.outdir, folder, f"{name}.html")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, page_of_results({target.stem: found}))
        return _FRAME.format(name=name)

    source[0] = _REPORT.sub(shown, source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", show_reports)
