"""Where the time of PyTorch's training steps goes: one thing is changed after the other.

A net is trained by PyTorch, step by step in float32, then in TF32, then in float16, compiled,
compiled with max-autotune, with the whole step in one CUDA graph, and then by convtime: as its
steps are divided or its products chosen untuned, and tuned for this GPU. Each stage has what the
one before has, too. Nets run from small, where a step is all launches, to large, where it is all
products.

All stages of a net take turns. They train alike: mean squared error, SGD with momentum, weights and
momentum in the stage's dtype, another batch of resident data each step. Seconds are those of one
step, of many between two idle states of the device, which is not let idle otherwise. A stage's
share is what it takes off, over float32's time; where it adds some, the share is negative.
"""

import itertools
from typing import Any

import results
from common import summaries

# Name: width, layers, batch
NETS = {
    "64 × 4, 1024": (64, 4, 1024),
    "128 × 5, 65536": (128, 5, 65_536),
    "256 × 4, 4096": (256, 4, 4096),
    "1024 × 4, 4096": (1024, 4, 4096),
    "4096 × 4, 8192": (4096, 4, 8192),
}
FLOAT32, TF32, FLOAT16 = "float32", "TF32", "float16"
COMPILED, AUTOTUNED = "torch.compile", "max-autotune"
GRAPH = "one CUDA graph"
UNTUNED, TUNED = "convtime, untuned", "convtime, tuned"
# In the order of __main__.py
STAGES = (FLOAT32, TF32, FLOAT16, COMPILED, AUTOTUNED, GRAPH, UNTUNED, TUNED)
BATCHES = 4  # of resident data
BUDGET = 8.0  # seconds of a net


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """How far PyTorch's max-autotune is behind convtime, for the smallest net and the largest."""
    summary: dict[str, float] = {"nets": len(rows)}
    by_net = {row["key"]: row["seconds"] for row in rows}
    for name, net in (("smallest", next(iter(NETS))), ("largest", next(reversed(NETS)))):
        if net in by_net:
            seconds = by_net[net]
            summary[f"{name}_max_autotune_over_convtime"] = seconds[AUTOTUNED] / seconds[TUNED]
    return summary


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """What each stage takes off the one before, over the first one's time."""
    return {
        stage: (seconds[before] - seconds[stage]) / seconds[FLOAT32]
        for before, stage in itertools.pairwise(STAGES)
    }


def table(rows: list[results.Row]) -> str:
    lines = []
    for stage in STAGES:
        cells = [stage]
        for row in rows:
            share = shares(row["seconds"]).get(stage)
            cells.append(f"{1e6 * row['seconds'][stage]:.1f}")
            cells.append("" if share is None else f"{100 * share:.1f} %")
        lines.append(cells)
    header = "stage" + "".join(f" | {row['key']} (µs): | share:" for row in rows)
    return summaries.markdown(header, lines)


def picture(document: dict[str, Any]) -> bytes:
    """A waterfall for each net, from float32 to what convtime takes."""
    from convtime.view.figure import BLUE, GREEN, ORANGE, columns, numbers, quantity

    across = quantity("left", "% of float32's time")
    colors = {"domain": ["saved", "added"], "range": [GREEN, ORANGE]}
    changed = {"field": "change", "type": "nominal", "scale": colors, "title": None}
    shown = {"field": "time", "type": "nominal"}
    text = {"type": "text", "align": "left", "dx": 4}
    layers = [
        summaries.layer({"type": "bar", "color": BLUE, "opacity": 0.5}, {}, x=across),
        summaries.layer("bar", {}, x=across, x2={"field": "before"}, color=changed),
        summaries.layer(text, {}, x=across | {"field": "end"}, text=shown),
    ]
    stage = {"field": "stage", "type": "nominal", "sort": None, "title": None}
    panels: list[dict[str, Any]] = []
    for row in document["rows"]:
        seconds = row["seconds"]
        left = [100 * seconds[stage] / seconds[FLOAT32] for stage in STAGES]
        before = [left[0], *left[:-1]]
        cells = columns(
            stage=STAGES,
            left=numbers(left),
            before=numbers(before),
            end=numbers(map(max, left, before)),
            change=["saved" if a <= b else "added" for a, b in zip(left, before, strict=True)],
            time=[f"{_microseconds(seconds[stage])} µs" for stage in STAGES],
        )
        down = stage | ({"axis": {"labels": False}} if panels else {})
        panel = {"title": row["key"], "width": 180, "height": {"step": 20}, "layer": layers}
        panels.append({**cells, **panel, "encoding": {"y": down}})
    return summaries.picture(
        document,
        "A training step, width × layers, batch",
        "Time of a training step after each stage, in percent of float32's.",
        {"hconcat": panels},
    )


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.{0 if seconds >= 1e-4 else 1}f}"
