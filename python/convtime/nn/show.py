"""Show the changes of a model: one line, and a list of all layers."""

from __future__ import annotations

from collections.abc import Iterator

from convtime.nn.replacement import LayerReport
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.wording import printable

_ITSELF = "the model itself"


def line(change: LayerReport) -> str:
    text = _counts(change)
    if change.left:
        text += f": {', '.join(name for name, _ in _named(change.left))}"
    return printable(text)


def printed(change: LayerReport) -> Iterator[Block]:
    left = (f"{name} is left: {why}" for name, why in _named(change.left))
    yield Sentences(left, title=_counts(change))


def details(change: LayerReport) -> Iterator[Block]:
    yield Line(_counts(change))
    left = [(name, f"left: {why}") for name, why in _named(change.left)]
    yield Table((change.one, ""), left + _named(change.done))


def _counts(change: LayerReport) -> str:
    return f"{len(change.done)} {change.counted}, {len(change.left)} left"


def _named(layers: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    return [(name or _ITSELF, change) for name, change in layers]
