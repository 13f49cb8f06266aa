"""Two runs side by side: their times with verdicts, and what else differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from convtime.core.codec import Stored
from convtime.exchange.files import baseline_of, measurements_of, with_names_in_common
from convtime.regression.changes import Changes
from convtime.regression.compare_runs import compare_runs
from convtime.timing.measurement import Measurement
from convtime.timing.show import estimate
from convtime.view.page import Block, Details, Sentences, Table
from convtime.view.report import written
from convtime.view.shown import blocks_of, provenances


def side_by_side(before: tuple[str, Stored], after: tuple[str, Stored]) -> Iterator[Block]:
    """Yield the changes of measurements with names in common, and the different provenance.

    Args:
        before: title and result of the earlier run.
        after: title and result of the later run.
    """
    (first, earlier), (second, later) = before, after
    were, now = measurements_of(earlier), measurements_of(later)
    if were and now:
        yield from _changes(first, earlier, second, later)
    yield from _provenance(first, earlier, second, later)


def _changes(first: str, earlier: Stored, second: str, later: Stored) -> Iterator[Block]:
    try:
        were, now = with_names_in_common(baseline_of(earlier), baseline_of(later), first, second)
        changes = compare_runs(were, now)
    except ValueError as error:
        yield Sentences([f"the times are not compared: {error}"], role="caution")
        return
    blocks = blocks_of(changes)
    yield from (block for block in blocks if block.role == "answer")
    yield _table(changes, were.measurements, now.measurements, (first, second))
    yield from (block for block in blocks if block.role == "caution")
    yield Details([block for block in blocks if not block.role], title="changes with their causes")


def _table(
    changes: Changes,
    were: Mapping[str, Measurement],
    now: Mapping[str, Measurement],
    titles: tuple[str, str],
) -> Table:
    headers = ("name", *(f"{title}: median [95 %]" for title in titles), "ratio [95 %]", "verdict")
    rows = [
        (
            change.name,
            *(estimate(run[change.name]) if change.name in run else "–" for run in (were, now)),
            "–" if change.ratio is None else str(change.ratio),
            change.verdict,
        )
        for change in changes.changes
    ]
    return Table(headers, rows, right=headers[1:4])


def _provenance(first: str, earlier: Stored, second: str, later: Stored) -> Iterator[Block]:
    """Yield a row per entry of the provenance that differs between the first measurements."""
    sheets = [written(next(iter(provenances(found).values()), {})) for found in (earlier, later)]
    names = dict.fromkeys(name for sheet in sheets for name in sheet)
    pairs = {name: [sheet.get(name, "–") for sheet in sheets] for name in names}
    rows = [(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
    if rows:
        headers = ("", first, second)
        yield Details([Table(headers, rows)], title="provenance that differs")
