"""Builds the documentation's site: sphinx-build -W docs build/site.

The pages are those that the repository shows, in Markdown. The site adds a menu, a search, and the
reference of all public functions from their docstrings.
"""

from __future__ import annotations

import convtime

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
