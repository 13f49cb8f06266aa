"""Pages of several results, and what differs between two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from convtime.core.codec import Stored
from convtime.exchange.files import baseline_of, measurements_of, with_names_in_common
from convtime.regression.changes import Changes
from convtime.regression.compare_runs import compare_runs
from convtime.timing.measurement import Measurement
from convtime.timing.show import estimate
from convtime.view.page import Block, Details, Sentences, Table
from convtime.view.report import page_of, provenance_facts
from convtime.view.shown import blocks_of, provenances, section_of


def page_of_results(results: Mapping[str, Stored], notes: Iterable[str] = ()) -> str:
    """Return a page of results as HTML; two are also compared with each other.

    Args:
        results: the results by title.
        notes: sentences at the top of the page.
    """
    cautions = [*notes, *_different_hardware(results)]
    above: list[Block] = [Sentences(cautions, role="caution")] if cautions else []
    if len(results) == 2:
        (first, earlier), (second, later) = results.items()
        above += _side_by_side(first, earlier, second, later)
    return page_of([section_of(title, result) for title, result in results.items()], above)


def _different_hardware(results: Mapping[str, Stored]) -> list[str]:
    """Return a sentence if results next to each other are from different GPUs or CPUs."""
    by_hardware: dict[str, dict[str, None]] = {}
    for title, result in results.items():
        for provenance in provenances(result).values():
            hardware = str(provenance.get("gpu") or provenance.get("cpu") or "unknown hardware")
            by_hardware.setdefault(hardware, {})[title] = None
    if len(by_hardware) < 2:
        return []
    listed = (f"{hardware}: {', '.join(titles)}" for hardware, titles in by_hardware.items())
    return [
        "these results are from different hardware, so that times are not comparable: "
        + "; ".join(listed)
    ]


def _side_by_side(first: str, earlier: Stored, second: str, later: Stored) -> Iterator[Block]:
    """Yield the changes of measurements with names in common, and the different provenance.

    Args:
        first: title of the earlier run.
        earlier: result of the earlier run.
        second: title of the later run.
        later: result of the later run.
    """
    if measurements_of(earlier) and measurements_of(later):
        yield from _changes(first, earlier, second, later)
    sheets = [
        provenance_facts(next(iter(provenances(run).values()), {})) for run in (earlier, later)
    ]
    names = dict.fromkeys(name for sheet in sheets for name in sheet)
    pairs = {name: [sheet.get(name, "–") for sheet in sheets] for name in names}
    rows = [(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
    if rows:
        yield Details([Table(("", first, second), rows)], title="provenance that differs")


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
