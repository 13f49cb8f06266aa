"""Tables and the picture that documents show, made of the rows without torch."""

from __future__ import annotations

from typing import Any

import results
from common.summaries import png_of

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

# What is drawn: in the thread's colours, and convtime's answer beside them.
_APPLICATIONS = {
    "in_place": ("PyTorch", "tab:orange"),
    "isolated": ("isolated", "tab:blue"),
    "same_regime": ("isolated, after a step", "tab:green"),
}
_PLACES = {
    "in_place": ("PyTorch", "tab:orange"),
    "behind_the_step": ("isolated, after a step", "tab:green"),
    "dirty": ("isolated, dirty L2", "tab:blue"),
    "cold": ("isolated, after a flush that wrote", "tab:blue"),
    "clean": ("isolated, after one that read", "tab:blue"),
    "warm": ("isolated, warm", "tab:blue"),
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
    from matplotlib.figure import Figure

    rows = document["rows"]
    found = points(rows)
    layers = list(found[0]["layers"])
    figure = Figure(figsize=(4 * len(layers), 8), dpi=130, layout="constrained")
    axes = figure.subplots(3, len(layers), squeeze=False)
    iterations = [row["iterations"] for row in found]
    for column, name in enumerate(layers):
        times, clocks, writes = (axes[line][column] for line in range(3))
        for who, (label, colour) in _APPLICATIONS.items():
            values = [row["layers"][name][who] for row in found]
            low, mean, high = (
                [1e6 * value[key] for value in values] for key in ("min", "mean", "max")
            )
            times.plot(iterations, mean, "o-", markersize=3, color=colour, label=label)
            times.fill_between(iterations, low, high, color=colour, alpha=0.15)
            read = [clock_of(row, who) for row in found]
            known = [clock / 1e6 for clock in read if clock is not None]
            if len(known) == len(read):
                clocks.plot(iterations, known, "o-", color=colour)
        at_rest = idle(rows)
        if at_rest is not None and at_rest["sm_clock_hz"] is not None:
            clocks.axhline(at_rest["sm_clock_hz"] / 1e6, color="grey", linestyle=":", label="idle")
            clocks.legend(fontsize=7)
        times.set_title(name, size=10)
        for axis in (times, clocks):
            axis.set_xscale("log")
            axis.set_xlabel("iterations")
            axis.grid(alpha=0.25)
        _draw_writes(writes, [row for row in counted(rows) if row["layer"] == name])
    axes[0][0].set_ylabel("kernel time (µs): mean, min–max")
    axes[1][0].set_ylabel("SM clock (MHz)")
    axes[2][0].set_ylabel("dram_write (MB per launch)")
    axes[0][0].legend(fontsize=7)
    facts = document["provenance"]
    figure.suptitle(f"{facts['gpu'] or 'CPU'}, torch {facts['torch']}", size=10)
    return png_of(figure)


def _draw_writes(axis: Any, rows: list[results.Row]) -> None:
    if not rows:
        axis.text(0.5, 0.5, "counters were not read", ha="center", transform=axis.transAxes)
        axis.set_axis_off()
        return
    for place, (label, colour) in _PLACES.items():
        value = written((rows[0]["counted"][place] or {"values": {}})["values"])
        if value is not None:
            axis.barh(label, value / 1e6, color=colour)
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    axis.grid(axis="x", alpha=0.25)
