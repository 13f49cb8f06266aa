"""A Replacement as text, as a list of all layers, and as HTML."""

from __future__ import annotations

from convtime.nn.replacement import Replacement
from convtime.show import html, text

_ITSELF = "the model itself"


def line(replacement: Replacement) -> str:
    """How many layers were replaced, and which were left."""
    told = _counts(replacement)
    if replacement.left:
        told += f": {', '.join(name for name, _ in _left(replacement))}"
    return text.printable(told)


def brief(replacement: Replacement) -> str:
    """How many layers were replaced, and why others were left."""
    left = [f"{name} is left: {why}" for name, why in _left(replacement)]
    parts = [_counts(replacement), text.sentences(left, indent=2)]
    return "\n".join(filter(None, parts))


def sheet(replacement: Replacement) -> str:
    """Every layer by name, and why it was left where it was."""
    parts = [_counts(replacement)]
    rows = _rows(replacement)
    if rows:
        parts.append(text.table(_HEADERS, rows))
    return "\n\n".join(parts)


def html_sheet(replacement: Replacement) -> str:
    """As HTML, with everything escaped."""
    rows = _rows(replacement)
    return html.paragraph(_counts(replacement)) + (html.table(_HEADERS, rows) if rows else "")


_HEADERS = ("layer", "")


def _counts(replacement: Replacement) -> str:
    return f"{len(replacement.replaced)} convolution layers replaced, {len(replacement.left)} left"


def _left(replacement: Replacement) -> list[tuple[str, str]]:
    return [(name or _ITSELF, why) for name, why in replacement.left]


def _rows(replacement: Replacement) -> list[tuple[str, str]]:
    """Those that were left first, since they are what a reader looks for."""
    left = [(name, f"left: {why}") for name, why in _left(replacement)]
    return left + [(name or _ITSELF, "replaced") for name in replacement.replaced]
