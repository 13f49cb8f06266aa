"""Show the changes between two runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from convtime.timing.verdict import ChangeVerdict
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.wording import format_seconds

if TYPE_CHECKING:
    from convtime.regression.changes import Change, Changes, CommonChange

_VERDICTS: tuple[ChangeVerdict, ...] = get_args(ChangeVerdict)
_QUIET: tuple[ChangeVerdict, ...] = ("same",)  # shown only as a count
_NAMED = 5  # tests in a headline
_OTHER_FAILURES = frozenset(("missing", "different"))  # found without a comparison of times
_BY_TIME = frozenset(("slower", "faster"))
_HEADERS = ("verdict", "ratio [95 %]", "before → after", "name")


def line(changes: Changes) -> str:
    """Return one line with the count of each verdict and the geometric mean."""
    counts = {verdict: len(changes.of(verdict)) for verdict in _VERDICTS}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    mean = "" if changes.geomean is None else f"; geomean {changes.geomean}"
    return f"{len(changes.changes)} compared: {told or 'nothing'}{mean}"


def details(changes: Changes) -> Iterator[Block]:
    """Yield a table with a row per change other than ``same``, and its remarks below the name."""
    yield Line(f"{line(changes)} (margin {_margins(changes)})", role="answer")
    if changes.common is not None:
        yield Sentences([_common(changes)], role="answer")
    rows = [
        (change.verdict, *_cells(change), (change.name, *_remarks(change)))
        for change in _worst_first(changes)
    ]
    yield Table(_HEADERS, rows, right=_HEADERS[1:3])
    if changes.differences:
        yield Sentences(_differences(changes), title="recorded differences:", role="caution")
    yield Sentences(_other_results(changes), role="caution")


def judged(changes: Changes, failures: Collection[str]) -> Iterator[Block]:
    """Yield the headline of a gate, if it has failures, and the environment; then details."""
    if failures:
        yield Line(headline(changes, failures), role="answer")
    if changes.environment:
        told = " · ".join(f"{name} {value}" for name, value in changes.environment.items())
        yield Line(told, role="answer" if failures else "")  # directly below the headline
    yield from details(changes)


def headline(changes: Changes, failures: Collection[str]) -> str:
    """Return whether a gate with these failures passes, and otherwise the names and reasons.

    It is inconclusive if no times could be compared that are to be, or if all verdicts on them are
    uncertain.
    """
    found: dict[str, list[str]] = {}
    common = changes.common
    for change in changes.changes:
        for kind in change.kinds:
            if kind in failures and not (
                common and kind == common.verdict and _is_in(change, common)
            ):
                found.setdefault(kind, []).append(f"{change.name}{_size(change, kind)}")
    if "different" in failures and changes.different:
        found["different"] = list(changes.different)
    told = [f"{kind}: {_some(names)}" for kind, names in found.items()]
    if common is not None and common.verdict in failures:
        told.insert(0, f"{common}, {_some(common.names)}")
    if told:
        return f"failed: {'; '.join(told)}"
    count = len(changes.changes)
    compared = sum(change.p_value is not None for change in changes.changes)
    unsure = sum(change.p_value is not None for change in changes.of("uncertain"))
    if not compared and not _OTHER_FAILURES.issuperset(failures):
        return f"inconclusive: none of {count} could be compared"
    of = "" if compared == count else f" of {count}"
    if unsure == compared and not _BY_TIME.isdisjoint(failures):
        return f"inconclusive: {compared}{of} compared, all uncertain"
    doubt = f", {unsure} uncertain" if unsure else ""
    return f"passed: {compared}{of} compared, none {' or '.join(sorted(failures))}{doubt}"


def _size(change: Change, kind: str) -> str:
    """Return the size of a slowdown or speedup, with its margin and cause."""
    if kind not in _BY_TIME or change.ratio is None or change.margin is None:
        return ""
    cause = "" if change.attribution is None else f", {change.attribution.cause}"
    return f" ({change.ratio.value:.3f}, margin {change.margin:.1%}{cause})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _is_in(change: Change, common: CommonChange | None) -> bool:
    return common is not None and change.name in common.names


def _common(changes: Changes) -> str:
    common = changes.common
    assert common is not None
    (first, *_) = (changes[name].attribution for name in common.names)
    return f"{common}; cause: {first}"


def _margins(changes: Changes) -> str:
    """Return the common margin, or the range of calibrated ones."""
    margins = sorted(each.margin for each in changes.changes if each.margin is not None)
    if not margins or margins[0] == margins[-1]:
        return f"{margins[0] if margins else changes.margin:.2%}"
    return f"{margins[0]:.2%} to {margins[-1]:.2%}"


def _differences(changes: Changes) -> list[str]:
    return [f"{difference}{_share(difference.count)}" for difference in changes.differences]


def _other_results(changes: Changes) -> list[str]:
    return [f"different: {name}: {said}" for name, said in changes.different.items()]


def _worst_first(changes: Changes) -> list[Change]:
    """Sort changes other than ``same`` by verdict, slower first, then by size of the change."""

    def key(change: Change) -> tuple[int, float]:
        ratio = 1.0 if change.ratio is None else change.ratio.value
        return _VERDICTS.index(change.verdict), -max(ratio, 1 / ratio if ratio else 1.0)

    common = changes.common
    told = (
        each
        for each in changes.changes
        if not set(each.kinds).issubset(_QUIET) and not _is_in(each, common)
    )
    return sorted(told, key=key)


def _cells(change: Change) -> tuple[str, str]:
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


def _share(count: int) -> str:
    return f" (of {count})" if count > 1 else ""
