"""Pages of several results, and what differs between two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from convtime.core.codec import Stored
from convtime.reporting.runs import side_by_side
from convtime.view.page import Block, Sentences
from convtime.view.report import page_of
from convtime.view.shown import provenances, section_of


def page_of_results(results: Mapping[str, Stored], notes: Iterable[str] = ()) -> str:
    """Return a page of results as HTML; two are also compared with each other.

    Args:
        results: the results by title.
        notes: sentences at the top of the page.
    """
    cautions = [*notes, *_different_hardware(results)]
    above: list[Block] = [Sentences(cautions, role="caution")] if cautions else []
    if len(results) == 2:
        above += side_by_side(*results.items())
    return page_of([section_of(title, result) for title, result in results.items()], above)


def _different_hardware(results: Mapping[str, Stored]) -> list[str]:
    """Return a sentence if results next to each other are from different GPUs or CPUs."""
    by_hardware: dict[str, dict[str, None]] = {}
    for title, found in results.items():
        for known in provenances(found).values():
            hardware = str(known.get("gpu") or known.get("cpu") or "unknown hardware")
            by_hardware.setdefault(hardware, {})[title] = None
    if len(by_hardware) < 2:
        return []
    told = "; ".join(f"{hardware}: {', '.join(titles)}" for hardware, titles in by_hardware.items())
    return [f"these results are from different hardware, so that times are not comparable: {told}"]
