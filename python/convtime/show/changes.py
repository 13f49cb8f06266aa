"""What has changed between two runs, as text for a log and Markdown for a pull request."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import get_args

from convtime.results.regression import Change, Changes, Verdict
from convtime.results.units import format_seconds

_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_QUIET: tuple[Verdict, ...] = ("same",)  # told as a number alone


def line(changes: Changes) -> str:
    """One line: how many there are of each verdict, and the geometric mean."""
    counts = {verdict: len(changes.of(verdict)) for verdict in _VERDICTS}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    mean = "" if changes.geomean is None else f"; geomean {changes.geomean}"
    return f"{len(changes.changes)} compared: {told or 'nothing'}{mean}"


def text(changes: Changes) -> str:
    """All but what is the same, a line each, with what is to be said below it."""
    lines = [f"{line(changes)} (margin {changes.margin:.2%})"]
    width = max(map(len, _VERDICTS))
    for change in _worst_first(changes):
        cells = (f"{change.verdict:{width}}", *_cells(change), change.name)
        lines.append("  ".join(cell for cell in cells if cell))
        lines += [f"{'':{width}}  {remark}" for remark in _remarks(change)]
    if changes.changes:
        lines.append(f"cause: {changes.cause}")
    lines += [f"  {difference}{_share(difference.count)}" for difference in changes.differences]
    return "\n".join(lines)


def markdown(changes: Changes) -> str:
    """As :func:`text`; nothing in a name can be markup."""
    lines = [f"**{_escaped(line(changes))}** (margin {changes.margin:.2%})"]
    rows = _worst_first(changes)
    if rows:
        lines += ["", "| verdict | ratio | median | name | |", "|---|--:|--:|---|---|"]
    for change in rows:
        cells = (change.verdict, *_cells(change), change.name, "; ".join(_remarks(change)))
        lines.append(f"| {' | '.join(map(_escaped, cells))} |")
    if changes.changes:
        lines += ["", f"Cause: {_escaped(changes.cause)}"]
    if changes.differences:
        lines.append("")
    lines += [
        f"- {_escaped(str(difference))}{_share(difference.count)}"
        for difference in changes.differences
    ]
    return "\n".join(lines) + "\n"


def _worst_first(changes: Changes) -> list[Change]:
    """All but what is the same: slower ones first, and of these those that changed the most."""

    def key(change: Change) -> tuple[int, float]:
        ratio = 1.0 if change.ratio is None else change.ratio.value
        return _VERDICTS.index(change.verdict), -max(ratio, 1 / ratio if ratio else 1.0)

    return sorted((change for change in changes.changes if change.verdict not in _QUIET), key=key)


def _cells(change: Change) -> tuple[str, str]:
    ratio = "" if change.ratio is None else str(change.ratio)
    medians = [value for value in (change.before, change.after) if value is not None]
    return ratio, " → ".join(map(format_seconds, medians))


def _remarks(change: Change) -> Iterator[str]:
    if change.sentence:
        yield change.sentence
    if change.reproducer and change.verdict in ("slower", "uncertain"):
        yield f"again: {change.reproducer}"


def _share(count: int) -> str:
    return f" (of {count})" if count > 1 else ""


def _escaped(value: str) -> str:
    """Of a text, what neither HTML nor Markdown takes for markup, in one line."""
    plain = html.escape(" ".join(value.split()))
    return re.sub(r"([\\`*_{}\[\]|~#!@])", r"\\\1", plain)
