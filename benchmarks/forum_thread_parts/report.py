"""Tables and the picture that documents show, made of the rows without torch."""

from __future__ import annotations

from typing import Any

import results

from forum_thread_parts.summary import (
    advised,
    clock_of,
    counted,
    idle,
    points,
    same_regime_ratios,
    sentences,
    written,
)

_SIZE = {"width": 280, "height": 200}
# What is drawn: in about the thread's colours, and convtime's answer beside them.
_APPLICATIONS = {
    "in_place": ("PyTorch", "#D55E00"),
    "isolated": ("isolated", "#0072B2"),
    "same_regime": ("isolated, after a step", "#009E73"),
}
_PLACES = {
    "in_place": ("PyTorch", "#D55E00"),
    "behind_the_step": ("isolated, after a step", "#009E73"),
    "dirty": ("isolated, dirty L2", "#0072B2"),
    "cold": ("isolated, after a flush that wrote", "#0072B2"),
    "clean": ("isolated, after one that read", "#0072B2"),
    "warm": ("isolated, warm", "#0072B2"),
}


def table(rows: list[results.Row]) -> str:
    """Markdown, a line for each convolution and number of iterations, and what was found."""
    lines = [
        "| convolution | iterations | in PyTorch's loop (µs) | min–max | by itself (µs) | min–max "
        "| in the loop's regime (µs) | loop / that, medians |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in points(rows):
        ratios = same_regime_ratios(row)
        for name, layer in row["layers"].items():
            cells = [name, str(row["iterations"])]
            cells += [*_mean_and_range(layer["in_place"]), *_mean_and_range(layer["isolated"])]
            cells += [f"{1e6 * layer['same_regime']['mean']:.2f}", f"{ratios[name]:.3f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {said}" for said in sentences(rows))])


def _mean_and_range(times: results.Row) -> tuple[str, str]:
    low, high = (f"{1e6 * times[end]:.2f}" for end in ("min", "max"))
    return f"{1e6 * times['mean']:.2f}", f"{low}–{high}"


def counters_table(rows: list[results.Row]) -> str:
    """Markdown, a line for each metric of each convolution's kernel: one launch in each place."""
    headers = [told for told, _ in _PLACES.values()]
    lines = [
        f"| convolution | metric | {' | '.join(headers)} |",
        f"|---|---|{'--:|' * len(headers)}",
    ]
    for row in counted(rows):
        for metric, unit in row["units"].items():
            cells = [row["layer"], f"`{metric}` ({unit})"]
            for place in _PLACES:
                value = (row["counted"][place] or {"values": {}})["values"].get(metric)
                cells.append("–" if value is None else f"{value:.5g}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def advice_table(rows: list[results.Row]) -> str:
    """Markdown, a line for each piece of the thread's advice."""
    lines = [
        "| advice | time of | without (µs) | with (µs) | with / without | verdict |",
        "|---|---|--:|--:|--:|---|",
    ]
    for row in advised(rows):
        if "reason" in row:
            cells = [row["advice"], "", "", "", "", f"not measured: {row['reason']}"]
        else:
            value, low, high = row["ratio"]
            ratio = f"{value:.3f}" if low is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
            what = {"kernel": "the kernels", "sync": "the call, waited for"}.get(row["method"], "")
            cells = [row["advice"], what, f"{1e6 * row['without']:.2f}"]
            cells += [f"{1e6 * row['with']:.2f}", ratio, row["verdict"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(document: dict[str, Any]) -> bytes:
    """A PNG: the thread's plots, of times over iterations, and of what is written to memory."""
    from convtime.core.figure import Figure

    rows = document["rows"]
    found = points(rows)
    layers = list(found[0]["layers"])
    columns = [
        {
            "vconcat": [
                _times_panel(found, name),
                _clocks_panel(found, idle(rows)),
                _writes_panel([row for row in counted(rows) if row["layer"] == name]),
            ]
        }
        for name in layers
    ]
    facts = document["provenance"]
    return Figure(
        title=f"{facts['gpu'] or 'CPU'}, torch {facts['torch']}",
        description="Times, clocks and bytes written of convolutions in a loop and alone.",
        view={"hconcat": columns},
        key="dot: mean; band: minimum to maximum; dotted: clock when idle",
    ).content(".png")


def _applications() -> dict[str, Any]:
    from convtime.core.figure import series_color

    names, colours = zip(*_APPLICATIONS.values(), strict=True)
    return series_color(names, colours)


def _times_panel(found: list[results.Row], name: str) -> dict[str, Any]:
    from convtime.core.figure import columns, intervals, numbers, quantity

    given = [(row, who) for who in _APPLICATIONS for row in found]
    times = [row["layers"][name][who] for row, who in given]
    time = quantity("mean", "kernel time (µs)")
    return {
        **columns(
            series=[_APPLICATIONS[who][0] for _, who in given],
            iterations=[row["iterations"] for row, _ in given],
            mean=numbers([each["mean"] for each in times], 1e6),
            **intervals([each["min"] for each in times], [each["max"] for each in times], 1e6),
        ),
        "title": name,
        **_SIZE,
        "encoding": {
            "x": quantity("iterations", "iterations", type="log"),
            "color": _applications(),
        },
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.15},
                "encoding": {"y": time | {"field": "low"}, "y2": {"field": "high"}},
            },
            {"mark": {"type": "line", "point": True}, "encoding": {"y": time}},
        ],
    }


def _clocks_panel(found: list[results.Row], at_rest: results.Row | None) -> dict[str, Any]:
    from convtime.core.figure import columns, numbers, quantity

    clock = quantity("clock", "SM clock (MHz)")
    known = [
        (_APPLICATIONS[who][0], row["iterations"], hz)
        for who in _APPLICATIONS
        for row in found
        if (hz := clock_of(row, who)) is not None
    ]
    layers = [
        {
            **columns(
                series=[who for who, _, _ in known],
                iterations=[iterations for _, iterations, _ in known],
                clock=numbers([hz for _, _, hz in known], 1e-6),
            ),
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": quantity("iterations", "iterations", type="log"),
                "y": clock,
                "color": _applications(),
            },
        }
    ]
    if at_rest is not None and at_rest["sm_clock_hz"] is not None:
        layers.append(
            {
                "data": {"values": [{"clock": at_rest["sm_clock_hz"] / 1e6}]},
                "mark": {"type": "rule", "style": "ink", "strokeDash": [2, 2]},
                "encoding": {"y": clock},
            }
        )
    return {**_SIZE, "layer": layers}


def _writes_panel(rows: list[results.Row]) -> dict[str, Any]:
    from convtime.core.figure import columns, numbers, quantity

    found = [
        (label, colour, value)
        for place, (label, colour) in _PLACES.items()
        for row in rows[:1]
        if (value := written((row["counted"][place] or {"values": {}})["values"])) is not None
    ]
    return {
        **columns(
            place=[label for label, _, _ in found],
            colour=[colour for _, colour, _ in found],
            written=numbers([value for _, _, value in found], 1e-6),
        ),
        **_SIZE,
        "mark": "bar",
        "encoding": {
            "x": quantity("written", "dram_write (MB per launch)", zero=True),
            "y": {"field": "place", "type": "nominal", "sort": None, "title": None},
            "color": {"field": "colour", "type": "nominal", "scale": None},
        },
    }
