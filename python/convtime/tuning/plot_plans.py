"""Figure of chosen plans: the gain of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convtime.timing.plot import ratio_panel
from convtime.view.figure import Figure, labels

if TYPE_CHECKING:
    from convtime.tuning.plan_set import Plans

_MOST_ROWS = 60


def speedups_figure(plans: Plans) -> Figure:
    """Draw the speedup of each problem with its interval, the largest first."""
    known = [(entry, entry.facts) for entry in plans.entries if entry.facts is not None]
    known.sort(key=lambda each: -each[1].speedup.value)
    drawn = known[:_MOST_ROWS]
    rows = labels(f"{entry.name} {entry.problem.pass_name}: {entry.choice}" for entry, _ in drawn)
    return Figure(
        title="PyTorch's time over that of the chosen plan",
        description=(
            f"Speedup of {len(drawn)} of {len(known)} problems, the largest first, with 95 % "
            "intervals."
        ),
        view=ratio_panel(rows, [facts.speedup for _, facts in drawn], plans.margin, "speedup"),
        key="dot: speedup; bar: its 95 % interval; band: counts as equal",
    )
