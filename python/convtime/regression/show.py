"""Show the changes between two runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, get_args

from convtime.timing.verdict import ChangeVerdict
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.wording import format_seconds, listed

if TYPE_CHECKING:
    from convtime.regression.changes import Change, Changes, CommonChange

_VERDICTS: tuple[ChangeVerdict, ...] = get_args(ChangeVerdict)
_NAMED = 5  # tests in a headline
_OTHER_FAILURES = frozenset(("missing", "different"))  # found without a comparison of times
_BY_TIME = frozenset(("slower", "faster"))
_HEADERS = ("verdict", "ratio [95 %]", "before → after", "name")


def line(changes: Changes) -> str:
    counts = {verdict: len(changes.of(verdict)) for verdict in _VERDICTS}
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    mean = "" if changes.geomean is None else f"; geomean {changes.geomean}"
    return f"{len(changes.changes)} compared: {verdicts or 'nothing'}{mean}"


def details(changes: Changes) -> Iterator[Block]:
    """Yield a table with a row per change other than ``same``, and its remarks below the name."""
    yield Line(f"{line(changes)} (margin {_margins(changes)})", role="answer")
    common = changes.common
    if common is not None:
        cause = changes[common.names[0]].attribution
        yield Sentences([f"{common}; cause: {cause}"], role="answer")
    rows = [
        (change.verdict, *cells(change), (change.name, *_remarks(change)))
        for change in _worst_first(changes, common)
    ]
    yield Table(_HEADERS, rows, right=_HEADERS[1:3])
    if changes.differences:
        differences = [
            f"{difference} (of {difference.count})" if difference.count > 1 else str(difference)
            for difference in changes.differences
        ]
        yield Sentences(differences, title="recorded differences:", role="caution")
    different = [f"different: {name}: {how}" for name, how in changes.different.items()]
    yield Sentences(different, role="caution")


def judged(changes: Changes, failures: Collection[str]) -> Iterator[Block]:
    """Yield the headline of a gate, if it has failures, and the environment; then details."""
    if failures:
        yield Line(headline(changes, failures), role="answer")
    if changes.environment:
        environment = " · ".join(f"{name} {value}" for name, value in changes.environment.items())
        yield Line(environment, role="answer" if failures else "")  # directly below the headline
    yield from details(changes)


def headline(changes: Changes, failures: Collection[str]) -> str:
    """Return whether a gate with these failures passes, and otherwise the names and reasons.

    It is inconclusive if no times could be compared that are to be, or if all verdicts on them are
    uncertain.
    """
    names_by_kind: dict[str, list[str]] = {}
    common = changes.common
    in_common = set() if common is None else {(name, common.verdict) for name in common.names}
    for change in changes.changes:
        for kind in change.kinds:
            if kind in failures and (change.name, kind) not in in_common:
                names_by_kind.setdefault(kind, []).append(f"{change.name}{_size(change, kind)}")
    if "different" in failures and changes.different:
        names_by_kind["different"] = list(changes.different)
    causes = [f"{kind}: {listed(names, _NAMED)}" for kind, names in names_by_kind.items()]
    if common is not None and common.verdict in failures:
        causes.insert(0, f"{common}, {listed(common.names, _NAMED)}")
    if causes:
        return f"failed: {'; '.join(causes)}"
    count = len(changes.changes)
    compared = sum(change.p_value is not None for change in changes.changes)
    unsure = sum(change.p_value is not None for change in changes.of("uncertain"))
    if not compared and not _OTHER_FAILURES.issuperset(failures):
        return f"inconclusive: none of {count} could be compared"
    of = "" if compared == count else f" of {count}"
    if unsure == compared and not _BY_TIME.isdisjoint(failures):
        return f"inconclusive: {compared}{of} compared, all uncertain"
    also = f", {unsure} uncertain" if unsure else ""
    return f"passed: {compared}{of} compared, none {' or '.join(sorted(failures))}{also}"


def _size(change: Change, kind: str) -> str:
    """Return the size of a slowdown or speedup, with its margin and cause."""
    if kind not in _BY_TIME or change.ratio is None or change.margin is None:
        return ""
    cause = "" if change.attribution is None else f", {change.attribution.cause}"
    return f" ({change.ratio.value:.3f}, margin {change.margin:.1%}{cause})"


def _margins(changes: Changes) -> str:
    """Return the common margin, or the range of calibrated ones."""
    margins = {one.margin for one in changes.changes if one.margin is not None} or {changes.margin}
    ends = (f"{margin:.2%}" for margin in sorted({min(margins), max(margins)}))
    return " to ".join(ends)


def _worst_first(changes: Changes, common: CommonChange | None) -> list[Change]:
    """Sort changes other than ``same`` by verdict, slower first, then by size of the change."""

    def key(change: Change) -> tuple[int, float]:
        ratio = 1.0 if change.ratio is None else change.ratio.value
        return _VERDICTS.index(change.verdict), -max(ratio, 1 / ratio if ratio else 1.0)

    left_out = () if common is None else common.names
    separate = (
        change
        for change in changes.changes
        if change.kinds != ("same",) and change.name not in left_out
    )
    return sorted(separate, key=key)


def cells(change: Change) -> tuple[str, str]:
    ratio = "" if change.ratio is None else str(change.ratio)
    medians = [value for value in (change.before, change.after) if value is not None]
    return ratio, " → ".join(map(format_seconds, medians))


def _remarks(change: Change) -> Iterator[str]:
    if change.sentence:
        yield change.sentence
    if change.attribution is not None:
        yield f"cause: {change.attribution}"
    if change.reproducer and change.verdict in ("slower", "uncertain"):
        yield f"again: {change.reproducer}"
