"""Show Plans: the gain for each problem, and all facts of each choice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from convtime.tuning.plot_plans import speedups_figure
from convtime.view.figure import Figure
from convtime.view.page import Block, Details, Facts, Line, Sentences, Table
from convtime.view.wording import counted, format_bytes, format_seconds, printable

if TYPE_CHECKING:
    from convtime.tuning.plan_set import Plans, StoredPlan

_RIGHT = ("calls", "PyTorch", "chosen", "speedup [95 %]", "workspace")


def line(plans: Plans) -> str:
    """Return one line with the number of problems and their gains."""
    gained = [entry for entry in plans.entries if _is_faster(entry, plans.margin)]
    known = [entry for entry in plans.entries if entry.facts is not None]
    told = f"plans for {counted(len(plans.entries), 'problem')}"
    if not known:
        return told
    told += f", {len(gained)} of them faster than PyTorch's"
    before = sum(entry.count * entry.facts.pytorch_seconds for entry in known if entry.facts)
    after = sum(entry.count * entry.facts.seconds for entry in known if entry.facts)
    if gained and after > 0:
        told += f"; all together {before / after:.3f}× as fast"
    return told


def printed(plans: Plans) -> Iterator[Block]:
    """Yield a table with a row for each problem, and remarks."""
    yield Line(line(plans), role="answer")
    yield Table(("problem", "choice", *_RIGHT), [*map(_row, plans.entries)], right=_RIGHT)
    yield Sentences(_sentences(plans), role="caution")


def details(plans: Plans) -> Iterator[Block]:
    """Yield :func:`printed`, and all facts of each choice."""
    yield from printed(plans)
    for entry in plans.entries:
        yield Details([*_facts(entry)], title=_title(entry))


def _is_faster(entry: StoredPlan, margin: float) -> bool:
    return entry.facts is not None and entry.facts.speedup.low > 1 + margin


def _title(entry: StoredPlan) -> str:
    return printable(f"{entry.name}: {entry.problem}")


def _row(entry: StoredPlan) -> tuple[str, ...]:
    facts = entry.facts
    known = ("", "", "", "")
    if facts is not None:
        known = (
            format_seconds(facts.pytorch_seconds),
            format_seconds(facts.seconds),
            str(facts.speedup),
            "" if facts.workspace_bytes is None else format_bytes(facts.workspace_bytes),
        )
    return _title(entry), str(entry.choice), str(entry.count), *known


def _facts(entry: StoredPlan) -> Iterator[Block]:
    facts = entry.facts
    if facts is None:
        yield Line("nothing was measured")
        return
    yield Facts(
        {
            "ties": ", ".join(facts.ties),
            "PyTorch's engine": facts.pytorch_tag or "unknown",
            "candidates timed": str(facts.raced),
            "error": _error(facts.error),
            "error of PyTorch's": _error(facts.pytorch_error),
            "repeats": "the same bits" if facts.repeats else "other bits",
            "search": format_seconds(facts.budget_seconds),
        }
    )
    if facts.inexact:
        rows = [(name, _error(error)) for name, error in facts.inexact]
        yield Table(("not timed: less exact", "error"), rows)
    if facts.refused:
        yield Table(("not used", "reason"), list(facts.refused))


def _error(error: float | None) -> str:
    return "unknown" if error is None or math.isnan(error) else f"{error:.2e}"


def _sentences(plans: Plans) -> Iterator[str]:
    inexact = sum(bool(entry.facts and entry.facts.inexact) for entry in plans.entries)
    if inexact:
        yield (
            f"for {inexact} problems, candidates were not timed because their error is above the "
            "tolerance; details() lists them"
        )


def figures(plans: Plans) -> Iterator[Figure]:
    """Yield the figures, the most informative first."""
    if any(entry.facts is not None for entry in plans.entries):
        yield speedups_figure(plans)
