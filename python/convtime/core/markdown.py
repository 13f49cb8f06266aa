"""Escape text for Markdown."""

from __future__ import annotations

import re
from html import escape

from convtime.core.text import printable


def escaped(value: str) -> str:
    """Return a string in one line, without HTML or Markdown markup and without links."""
    plain = escape(printable(" ".join(value.split())), quote=False)
    inert = re.sub(r"([\\`*_{}\[\]|~#!@$])", r"\\\1", plain)
    return re.sub(r"(?i)(https?|ftp|www)(?=[:.])", r"\1\\", inert)
