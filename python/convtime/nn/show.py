"""Show the changes of a model: one line, and a list of all layers."""

from __future__ import annotations

from collections.abc import Iterator

from convtime.nn.layer_report import LayerReport
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.wording import printable

_ITSELF = "the model itself"


def line(change: LayerReport) -> str:
    """Return the number of changed layers, and the names of unchanged layers."""
    told = _counts(change)
    if change.left:
        told += f": {', '.join(name for name, _ in _named(change.left))}"
    return printable(told)


def printed(change: LayerReport) -> Iterator[Block]:
    """Yield the number of changed layers, and why others were left unchanged."""
    left = (f"{name} is left: {why}" for name, why in _named(change.left))
    yield Sentences(left, title=_counts(change))


def details(change: LayerReport) -> Iterator[Block]:
    """Yield why layers were left unchanged, since readers look for them, and each change."""
    yield Line(_counts(change))
    left = [(name, f"left: {why}") for name, why in _named(change.left)]
    yield Table((change.one, ""), left + _named(change.done))


def _counts(change: LayerReport) -> str:
    return f"{len(change.done)} {change.counted}, {len(change.left)} left"


def _named(layers: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    return [(name or _ITSELF, told) for name, told in layers]
