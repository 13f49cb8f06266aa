"""Show the changes between two runs, also as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from convtime.core.markdown import escaped
from convtime.core.page import Block, Line, Sentences, Table
from convtime.core.units import format_seconds
from convtime.timing.verdict import ChangeVerdict

if TYPE_CHECKING:
    from convtime.regression.changes import Change, Changes

_VERDICTS: tuple[ChangeVerdict, ...] = get_args(ChangeVerdict)
_QUIET: tuple[ChangeVerdict, ...] = ("same",)  # shown only as a count
_HEADERS = ("verdict", "ratio [95 %]", "before → after", "name")


def line(changes: Changes) -> str:
    """Return one line with the count of each verdict and the geometric mean."""
    counts = {verdict: len(changes.of(verdict)) for verdict in _VERDICTS}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    mean = "" if changes.geomean is None else f"; geomean {changes.geomean}"
    return f"{len(changes.changes)} compared: {told or 'nothing'}{mean}"


def details(changes: Changes) -> Iterator[Block]:
    """Yield a table with a row per change other than ``same``, and its remarks below the name."""
    yield Line(f"{line(changes)} (margin {changes.margin:.2%})")
    rows = [
        (change.verdict, *_cells(change), (change.name, *_remarks(change)))
        for change in _worst_first(changes)
    ]
    yield Table(_HEADERS, rows, right=_HEADERS[1:3])
    if changes.changes:
        yield Sentences([f"cause: {changes.cause}"])
    yield Sentences(_differences(changes), indent=2, tight=bool(changes.changes))
    yield Sentences(_other_results(changes))


def markdown(changes: Changes) -> str:
    """Return :func:`details` as Markdown; names are escaped."""
    lines = [f"**{escaped(line(changes))}** (margin {changes.margin:.2%})"]
    rows = _worst_first(changes)
    if rows:
        lines += ["", "| verdict | ratio | median | name | |", "|---|--:|--:|---|---|"]
    for change in rows:
        cells = (change.verdict, *_cells(change), change.name, "; ".join(_remarks(change)))
        lines.append(f"| {' | '.join(map(escaped, cells))} |")
    if changes.changes:
        lines += ["", f"Cause: {escaped(changes.cause)}"]
    if changes.differences:
        lines.append("")
    lines += [f"- {escaped(difference)}" for difference in _differences(changes)]
    if changes.different:
        lines.append("")
    lines += [f"- {escaped(result)}" for result in _other_results(changes)]
    return "\n".join(lines) + "\n"


def _differences(changes: Changes) -> list[str]:
    return [f"{difference}{_share(difference.count)}" for difference in changes.differences]


def _other_results(changes: Changes) -> list[str]:
    return [f"different: {name}: {said}" for name, said in changes.different.items()]


def _worst_first(changes: Changes) -> list[Change]:
    """Sort changes other than ``same`` by verdict, slower first, then by size of the change."""

    def key(change: Change) -> tuple[int, float]:
        ratio = 1.0 if change.ratio is None else change.ratio.value
        return _VERDICTS.index(change.verdict), -max(ratio, 1 / ratio if ratio else 1.0)

    told = (each for each in changes.changes if not set(each.kinds).issubset(_QUIET))
    return sorted(told, key=key)


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
