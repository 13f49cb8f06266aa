"""Show the changes between two interpreters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from convtime.regression.show import cells
from convtime.view.page import Block, Details, Line, Sentences, Table
from convtime.view.wording import format_bytes, format_seconds, format_signed

if TYPE_CHECKING:
    from convtime.upgrading.result import LayerChange, Upgrade

_HEADERS = ("verdict", "ratio [95 %]", "old → new", "added", "pass or test")
_RIGHT = _HEADERS[1:4]
_FACTS = ("pass or test", "first call", "memory", "error", "backend", "plan", "kernels")
_MORE_MEMORY = 0.01  # share of it


def line(upgrade: Upgrade) -> str:
    counts = Counter(one.change.verdict for one in upgrade.layers)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    step = "".join(
        f"; step {one.which} {one.change.ratio}" for one in upgrade.step if one.change.ratio
    )
    before, after = (
        ", ".join(f"{what} {side[what]}" for what in ("torch", "cudnn") if what in side)
        for side in (upgrade.before, upgrade.after)
    )
    return f"{before} → {after}: {verdicts or 'nothing compared'}{step}"


def printed(upgrade: Upgrade) -> Iterator[Block]:
    """Yield a table of the changes, then other differences and what could not be compared."""
    yield Line(f"{line(upgrade)} (margin {upgrade.margin:.2%})", role="answer")
    changed = (one for one in upgrade.layers if one.change.verdict != "same")
    yield Table(_HEADERS, [*map(_row, (*upgrade.step, *changed))], right=_RIGHT)
    lists = {
        "settings that differ": _differences(upgrade),
        "results that differ, in unchanged time": [
            f"{_title(one)}: {one.different}"
            for one in upgrade.layers
            if one.different and one.change.verdict == "same"
        ],
        "not compared": upgrade.failures,
        "unknown": upgrade.missing,
    }
    for title, sentences in lists.items():
        if sentences:
            yield Sentences(sentences, title=f"{title}:", role="caution")


def details(upgrade: Upgrade) -> Iterator[Block]:
    yield from printed(upgrade)
    facts = Table(_FACTS, [*map(_facts, (*upgrade.step, *upgrade.layers))])
    yield Details([facts], title="facts, old → new:")


def judged(upgrade: Upgrade, failures: Collection[str]) -> Iterator[Block]:
    """Yield the headline of a gate, if it has failures, and details."""
    if failures:
        causes = [f"{title} ({kind})" for title, kind in upgrade.findings if kind in failures]
        yield Line(f"failed: {', '.join(causes)}" if causes else "passed", role="answer")
    yield from details(upgrade)


def _row(layer: LayerChange) -> tuple[str, str, str, str, tuple[str, ...]]:
    return (
        layer.change.verdict,
        *cells(layer.change),
        "" if layer.cost_seconds is None else format_signed(layer.cost_seconds),
        (_title(layer), *_remarks(layer)),
    )


def _title(layer: LayerChange) -> str:
    count = len(layer.layers)
    return f"{layer.title} (and {count - 1} like it)" if count > 1 else layer.title


def _remarks(layer: LayerChange) -> Iterator[str]:
    change = layer.change
    if layer.cause is not None:
        yield f"cause: {layer.cause}"
    if change.sentence:
        yield change.sentence
    if layer.different:
        yield layer.different
    sides = (layer.before, layer.after)
    was, now = (None if facts is None else facts.memory_bytes for facts in sides)
    if was is not None and now is not None and abs(now - was) > _MORE_MEMORY * max(was, now):
        yield f"memory: {format_bytes(was)} → {format_bytes(now)}"
    if change.verdict in ("slower", "missing", "new") and change.reproducer:
        yield f"again: {change.reproducer}"


def _differences(upgrade: Upgrade) -> list[str]:
    names = dict.fromkeys((*upgrade.before, *upgrade.after))
    pairs = {
        name: (upgrade.before.get(name, "none"), upgrade.after.get(name, "none")) for name in names
    }
    return [f"{name}: {old} → {new}" for name, (old, new) in pairs.items() if old != new]


def _facts(layer: LayerChange) -> tuple[str, ...]:
    return (
        _title(layer),
        _both(layer, "first_call_seconds", format_seconds),
        _both(layer, "memory_bytes", format_bytes),
        _both(layer, "error", lambda error: f"{error:.2g}"),
        _both(layer, "backend", str),
        _both(layer, "plan", str),
        _both(layer, "kernels", ", ".join),
    )


def _both(layer: LayerChange, field: str, formatted: Callable[[Any], str]) -> str:
    """Return a fact of both sides, or once if it is the same."""
    values = [getattr(facts, field, None) for facts in (layer.before, layer.after)]
    texts = ("unknown" if value is None else formatted(value) for value in values)
    return " → ".join(dict.fromkeys(texts))
