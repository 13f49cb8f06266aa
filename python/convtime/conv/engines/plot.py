"""Plot of engines: time against workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from convtime.core.plot import COLORS, new_figure

if TYPE_CHECKING:
    from convtime.conv.engines.engine_table import EngineTable

_BYTES_PER_MIB = 1 << 20


def draw(table: EngineTable) -> Any:
    """Draw a panel for each pass; error bars are the intervals of the medians."""
    figure = new_figure(5.0 * len(table.passes), 4.0)
    panels = figure.subplots(1, len(table.passes), squeeze=False)[0]
    for axes, found in zip(panels, table.passes, strict=True):
        for who, chosen in (("convtime", False), ("PyTorch", True)):
            shown = [each for each in found.timed if (each.tag == found.pytorch_tag) == chosen]
            if not shown:
                continue
            times = [each.measurement for each in shown if each.measurement is not None]
            medians = [1e6 * each.median for each in times]
            ends = [each.median_interval for each in times]
            axes.errorbar(
                [(each.workspace_bytes or 0) / _BYTES_PER_MIB for each in shown],
                medians,
                yerr=(
                    [m - 1e6 * low for m, (low, _) in zip(medians, ends, strict=True)],
                    [1e6 * high - m for m, (_, high) in zip(medians, ends, strict=True)],
                ),
                fmt="s" if chosen else "o",
                markersize=7 if chosen else 4,
                capsize=2.5,
                color=COLORS[who],
                label="PyTorch's choice" if chosen else "other engines",
            )
        axes.set_xscale("symlog", linthresh=1)
        axes.set_yscale("log")
        axes.set_xlabel("workspace (MiB)")
        axes.set_ylabel("time (µs): median, interval")
        axes.set_title(found.name, fontsize=10)
        axes.grid(alpha=0.25)
        axes.legend(loc="best", fontsize=8)
    return figure
