"""Show Plans: the gain for each problem, and all facts of each choice."""

from __future__ import annotations

import math
from collections.abc import Iterator

from convtime.conv.plans.plan_set import Plans, StoredPlan
from convtime.timing.plot import ratio_panel
from convtime.view.figure import Figure, labels
from convtime.view.page import Block, Details, Facts, Line, Sentences, Table
from convtime.view.wording import counted, format_bytes, format_seconds, printable

_MOST_ROWS = 60  # of the figure
_RIGHT = ("calls", "PyTorch", "chosen", "speedup [95 %]", "workspace")


def line(plans: Plans) -> str:
    text = f"plans for {counted(len(plans.entries), 'problem')}"
    measured = [(entry.count, entry.facts) for entry in plans.entries if entry.facts is not None]
    if not measured:
        return text
    gained = sum(facts.speedup.low > 1 + plans.margin for _, facts in measured)
    text += f", {gained} of them faster than PyTorch's"
    before = sum(count * facts.pytorch_seconds for count, facts in measured)
    after = sum(count * facts.seconds for count, facts in measured)
    if gained and after > 0:
        text += f"; all together {before / after:.3f}× as fast"
    return text


def printed(plans: Plans) -> Iterator[Block]:
    yield Line(line(plans), role="answer")
    yield Table(("problem", "choice", *_RIGHT), [*map(_row, plans.entries)], right=_RIGHT)
    yield Sentences(_sentences(plans), role="caution")


def details(plans: Plans) -> Iterator[Block]:
    yield from printed(plans)
    for entry in plans.entries:
        yield Details([*_facts(entry)], title=_title(entry))


def _title(entry: StoredPlan) -> str:
    return printable(f"{entry.name}: {entry.problem}")


def _row(entry: StoredPlan) -> tuple[str, ...]:
    facts = entry.facts
    measured = ("", "", "", "")
    if facts is not None:
        measured = (
            format_seconds(facts.pytorch_seconds),
            format_seconds(facts.seconds),
            str(facts.speedup),
            "" if facts.workspace_bytes is None else format_bytes(facts.workspace_bytes),
        )
    return _title(entry), str(entry.choice), str(entry.count), *measured


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
    measured = [(entry, entry.facts) for entry in plans.entries if entry.facts is not None]
    if not measured:
        return
    drawn = sorted(measured, key=lambda each: -each[1].speedup.value)[:_MOST_ROWS]
    rows = labels(f"{entry.name} {entry.problem.pass_name}: {entry.choice}" for entry, _ in drawn)
    yield Figure(
        title="PyTorch's time over that of the chosen plan",
        description=(
            f"Speedup of {len(drawn)} of {len(measured)} problems, the largest first, with 95 % "
            "intervals."
        ),
        view=ratio_panel(rows, [facts.speedup for _, facts in drawn], plans.margin, "speedup"),
        key="dot: speedup; bar: its 95 % interval; band: counts as equal",
    )
