"""Figures of modules within a step and in isolation, and of regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from convtime.timing.plot import Spread, times_and_ratios, times_panel
from convtime.view.figure import Figure, labels
from convtime.view.wording import counted

if TYPE_CHECKING:
    from convtime.recording.module_times import ModuleTimes
    from convtime.recording.recording import Recording


_MOST_REGIONS = 60


def regions_figure(recorded: Recording) -> Figure:
    """Draw the times of each region's entries, on the host and on the GPU."""
    regions = recorded.regions
    shown = regions[:_MOST_REGIONS]
    times = {"host": [_spread(region.host_seconds) for region in shown]}
    if recorded.method == "kernel":
        times["GPU work"] = [_spread(region.kernel_seconds) for region in shown]
    left_out = f" {len(regions) - len(shown):,} other regions are not shown."
    return Figure(
        title="Times of regions",
        description=(
            f"Times of the entries of {counted(len(shown), 'region')}: {' and '.join(times)}."
            + left_out * (len(shown) < len(regions))
        ),
        view=times_panel(labels("/".join(region.path) for region in shown), times),
        key="dot: median of the entries; bars: quartiles, minimum to maximum",
    )


def _spread(seconds: Sequence[float]) -> Spread | None:
    if not seconds:
        return None
    least, low, median, high, most = np.quantile(seconds, (0, 0.25, 0.5, 0.75, 1)).tolist()
    return Spread(median, low, high, least, most)


def modules_figure(timed: ModuleTimes) -> Figure:
    """Draw each module pass's time within a step and in isolation, and the ratio."""
    passes = timed.passes
    in_place = [Spread(each.median, *each.median_interval) for each in passes]
    isolated = [
        None
        if each.isolated is None
        else Spread(each.isolated.median, *each.isolated.median_interval)
        for each in passes
    ]
    return Figure(
        title=f"{timed.model}: {timed.method} times of modules in a step",
        description=(
            f"Times of {counted(len(passes), 'pass', 'passes')} of the modules of {timed.model} "
            "within a step and in isolation, with 95 % intervals, and the ratios of the two."
        ),
        view=times_and_ratios(
            labels(f"{each.module or 'the model'} {each.direction}" for each in passes),
            {"in place": in_place, "isolated": isolated},
            [each.ratio for each in passes],
            timed.margin,
            "in place / isolated",
        ),
        key=f"dot: median; bar: its 95 % interval; band: ± {timed.margin:.2%}",
    )
