"""Figure of engines: time against workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convtime.view.figure import (
    Figure,
    Spec,
    columns,
    intervals,
    labels,
    microseconds,
    numbers,
    quantity,
    series_color,
)

if TYPE_CHECKING:
    from convtime.conv.engines.engine_table import EngineTable, PassEngines

_MIB_PER_BYTE = 2.0**-20
_CHOICE, _OTHERS = "PyTorch's choice", "other engines"


def engines_figure(table: EngineTable) -> Figure:
    """Draw a panel for each pass, with the medians and their intervals."""
    counts = ", ".join(f"{found.name} {len(found.timed)}" for found in table.passes)
    return Figure(
        title=f"Engines for {table.call.problem.label}, {table.call.dtype}",
        description=(
            "Time of each engine of cuDNN against its workspace, with PyTorch's choice marked. "
            f"Engines that run: {counts}."
        ),
        view={"hconcat": [_panel(found) for found in table.passes if found.timed]},
        key="dot: median; bar: its 95 % interval",
    )


def _panel(found: PassEngines) -> Spec:
    # PyTorch's choice is drawn last, on top of the others.
    ordered = sorted(found.timed, key=lambda each: each.tag == found.pytorch_tag)
    timed = [(each, each.measurement) for each in ordered if each.measurement is not None]
    medians = microseconds(measured.median for _, measured in timed)
    ends = [measured.median_interval for _, measured in timed]
    time = quantity("time", "time (µs)", type="log")
    return {
        **columns(
            engine=labels(each.tag for each, _ in timed),
            workspace=numbers([each.workspace_bytes or 0 for each, _ in timed], _MIB_PER_BYTE),
            series=[_CHOICE if each.tag == found.pytorch_tag else _OTHERS for each, _ in timed],
            time=medians,
            **intervals([low for low, _ in ends], [high for _, high in ends], 1e6),
        ),
        "title": found.name,
        "width": 300,
        "height": 240,
        "encoding": {
            "x": quantity("workspace", "workspace (MiB)", type="symlog"),
            "color": series_color([_CHOICE, _OTHERS]),
        },
        "layer": [
            {
                "mark": "rule",
                "encoding": {"y": time | {"field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 1},
                "encoding": {
                    "y": time,
                    "shape": {
                        "field": "series",
                        "type": "nominal",
                        "title": None,
                        "scale": {"domain": [_CHOICE, _OTHERS], "range": ["square", "circle"]},
                    },
                },
            },
        ],
    }
