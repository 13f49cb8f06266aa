"""Show the changes between two interpreters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from convtime.view.page import Block, Details, Line, Sentences, Table
from convtime.view.wording import format_bytes, format_seconds, format_signed

if TYPE_CHECKING:
    from convtime.upgrading.causes import PassFacts
    from convtime.upgrading.result import LayerChange, Upgrade

_HEADERS = ("verdict", "ratio [95 %]", "old → new", "added", "pass or test")
_RIGHT = _HEADERS[1:4]
_FACTS = ("pass or test", "first call", "memory", "error", "backend", "plan", "kernels")
_MORE_MEMORY = 0.01  # share of it


def line(upgrade: Upgrade) -> str:
    """Return one line with the versions and the number of each verdict."""
    counts = Counter(each.change.verdict for each in upgrade.layers)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    step = "".join(
        f"; step {each.which} {each.change.ratio}" for each in upgrade.step if each.change.ratio
    )
    return f"{_versions(upgrade)}: {told or 'nothing compared'}{step}"


def printed(upgrade: Upgrade) -> Iterator[Block]:
    """Yield a table of the changes, then other differences and what could not be compared."""
    yield Line(f"{line(upgrade)} (margin {upgrade.margin:.2%})", role="answer")
    yield Table(_HEADERS, _rows(upgrade), right=_RIGHT)
    for title, sentences in _lists(upgrade).items():
        yield Sentences(sentences, title=f"{title}:", role="caution")


def details(upgrade: Upgrade) -> Iterator[Block]:
    """Yield the same, with the facts of all passes."""
    yield from printed(upgrade)
    every = (*upgrade.step, *upgrade.layers)
    facts = Table(_FACTS, [_facts(each) for each in every])
    yield Details([facts], title="facts, old → new:")


def judged(upgrade: Upgrade, failures: Collection[str]) -> Iterator[Block]:
    """Yield the headline of a gate, if it has failures, and details."""
    if failures:
        found = [f"{title} ({kind})" for title, kind in upgrade.findings if kind in failures]
        yield Line(f"failed: {', '.join(found)}" if found else "passed", role="answer")
    yield from details(upgrade)


def _lists(upgrade: Upgrade) -> dict[str, list[str]]:
    """Return the nonempty lists of sentences below the table, by their titles."""
    found = {
        "settings that differ": _differences(upgrade),
        "results that differ, in unchanged time": _same_time(upgrade),
        "not compared": [*upgrade.failures],
        "unknown": [*upgrade.missing],
    }
    return {title: sentences for title, sentences in found.items() if sentences}


def _versions(upgrade: Upgrade) -> str:
    before, after = (
        ", ".join(f"{what} {side[what]}" for what in ("torch", "cudnn") if what in side)
        for side in (upgrade.before, upgrade.after)
    )
    return f"{before} → {after}"


def _rows(upgrade: Upgrade) -> list[tuple[str, str, str, str, tuple[str, ...]]]:
    """Return a row for the step and for each pass that is not unchanged."""
    changed = (each for each in upgrade.layers if each.change.verdict != "same")
    rows: list[tuple[str, str, str, str, tuple[str, ...]]] = []
    for each in (*upgrade.step, *changed):
        change = each.change
        medians = [value for value in (change.before, change.after) if value is not None]
        rows.append(
            (
                change.verdict,
                "" if change.ratio is None else str(change.ratio),
                " → ".join(map(format_seconds, medians)),
                "" if each.cost_seconds is None else format_signed(each.cost_seconds),
                (_title(each), *_remarks(each)),
            )
        )
    return rows


def _title(each: LayerChange) -> str:
    count = len(each.layers)
    return f"{each.title} (and {count - 1} like it)" if count > 1 else each.title


def _remarks(each: LayerChange) -> Iterator[str]:
    change = each.change
    if each.cause is not None:
        yield f"cause: {each.cause}"
    if change.sentence:
        yield change.sentence
    if each.different:
        yield each.different
    memory = _memory(each.before, each.after)
    if memory:
        yield memory
    if change.verdict in ("slower", "missing", "new") and change.reproducer:
        yield f"again: {change.reproducer}"


def _memory(before: PassFacts | None, after: PassFacts | None) -> str:
    if before is None or after is None:
        return ""
    was, now = before.memory_bytes, after.memory_bytes
    if was is None or now is None or abs(now - was) <= _MORE_MEMORY * max(was, now):
        return ""
    return f"memory: {format_bytes(was)} → {format_bytes(now)}"


def _differences(upgrade: Upgrade) -> list[str]:
    names = dict.fromkeys((*upgrade.before, *upgrade.after))
    pairs = {
        name: (upgrade.before.get(name, "none"), upgrade.after.get(name, "none")) for name in names
    }
    return [f"{name}: {old} → {new}" for name, (old, new) in pairs.items() if old != new]


def _same_time(upgrade: Upgrade) -> list[str]:
    return [
        f"{_title(each)}: {each.different}"
        for each in upgrade.layers
        if each.different and each.change.verdict == "same"
    ]


def _facts(each: LayerChange) -> tuple[str, ...]:
    return (
        _title(each),
        _both(each, "first_call_seconds", format_seconds),
        _both(each, "memory_bytes", format_bytes),
        _both(each, "error", lambda error: f"{error:.2g}"),
        _both(each, "backend", str),
        _both(each, "plan", str),
        _both(each, "kernels", ", ".join),
    )


def _both(each: LayerChange, field: str, form: object) -> str:
    """Return a fact of both sides, or once if it is the same."""
    values = [None if one is None else getattr(one, field) for one in (each.before, each.after)]
    told = ["unknown" if value is None else form(value) for value in values]  # type: ignore[operator]
    return " → ".join(dict.fromkeys(told))
