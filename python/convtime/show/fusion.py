"""A Fusion as text, as a list of all convolutions, and as HTML."""

from __future__ import annotations

from convtime.nn.fusion import Fusion
from convtime.show import html, text

_ITSELF = "the model itself"
_HEADERS = ("convolution", "")


def line(fusion: Fusion) -> str:
    """How many convolutions were fused, and which were left."""
    told = _counts(fusion)
    if fusion.left:
        told += f": {', '.join(name for name, _ in _left(fusion))}"
    return text.printable(told)


def brief(fusion: Fusion) -> str:
    """How many convolutions were fused, and why others were left."""
    left = [f"{name} is left: {why}" for name, why in _left(fusion)]
    parts = [_counts(fusion), text.sentences(left, indent=2)]
    return "\n".join(filter(None, parts))


def sheet(fusion: Fusion) -> str:
    """What each convolution is one call with, and why others were left."""
    parts = [_counts(fusion)]
    rows = _rows(fusion)
    if rows:
        parts.append(text.table(_HEADERS, rows))
    return "\n\n".join(parts)


def html_sheet(fusion: Fusion) -> str:
    """As HTML, with everything escaped."""
    rows = _rows(fusion)
    return html.paragraph(_counts(fusion)) + (html.table(_HEADERS, rows) if rows else "")


def _counts(fusion: Fusion) -> str:
    return f"{len(fusion.fused)} convolutions fused, {len(fusion.left)} left"


def _left(fusion: Fusion) -> list[tuple[str, str]]:
    return [(name or _ITSELF, why) for name, why in fusion.left]


def _rows(fusion: Fusion) -> list[tuple[str, str]]:
    """Those that were left first, since they are what a reader looks for."""
    left = [(name, f"left: {why}") for name, why in _left(fusion)]
    return left + [(each.name, f"with {' + '.join(each.steps)}") for each in fusion.fused]
