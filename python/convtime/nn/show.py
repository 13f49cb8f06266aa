"""Render the changes of a model as text, a list of all layers, and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convtime.core import html, text

if TYPE_CHECKING:
    from convtime.nn.model_change import ModelChange

_ITSELF = "the model itself"


def line(change: ModelChange) -> str:
    """Return the number of changed layers, and the names of unchanged layers."""
    names = ", ".join(name for name, _ in _named(change.left))
    return text.printable(": ".join(filter(None, (_counts(change), names))))


def brief(change: ModelChange) -> str:
    """Return the number of changed layers, and why others were left unchanged."""
    left = [f"{name} is left: {why}" for name, why in _named(change.left)]
    return "\n".join(filter(None, (_counts(change), text.sentences(left, indent=2))))


def sheet(change: ModelChange) -> str:
    """Return the change of each layer, or why it was left unchanged."""
    rows = _rows(change)
    table = text.table((change.one, ""), rows) if rows else ""
    return "\n\n".join(filter(None, (_counts(change), table)))


def html_sheet(change: ModelChange) -> str:
    """Return the changes as HTML, with all text escaped."""
    rows = _rows(change)
    table = html.table((change.one, ""), rows) if rows else ""
    return html.paragraph(_counts(change)) + table


def _counts(change: ModelChange) -> str:
    return f"{len(change.done)} {change.counted}, {len(change.left)} left"


def _named(layers: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    return [(name or _ITSELF, told) for name, told in layers]


def _rows(change: ModelChange) -> list[tuple[str, str]]:
    """Return rows with unchanged layers first, since readers look for them."""
    left = [(name, f"left: {why}") for name, why in _named(change.left)]
    return left + _named(change.done)
