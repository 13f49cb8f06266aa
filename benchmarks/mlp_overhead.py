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

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import mlp
import results
from common import running, summaries

if TYPE_CHECKING:
    import torch

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
            summary[f"{name}_float32_over_convtime"] = seconds[FLOAT32] / seconds[TUNED]
    return summary


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """What each stage takes off the one before, over the first one's time."""
    return {
        stage: (seconds[before] - seconds[stage]) / seconds[FLOAT32]
        for before, stage in itertools.pairwise(STAGES)
    }


def table(rows: list[results.Row]) -> str:
    """Markdown: a line for each stage, with time and share for each net."""
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
    """A PNG: a waterfall for each net, from float32 to what convtime takes."""
    from convtime.core.figure import BLUE, GREEN, ORANGE, Figure, columns, numbers, quantity

    across = quantity("left", "% of float32's time")
    stage = {"field": "stage", "type": "nominal", "sort": None, "title": None}
    panels: list[dict[str, Any]] = []
    for row in document["rows"]:
        seconds = row["seconds"]
        left = [100 * seconds[stage] / seconds[FLOAT32] for stage in STAGES]
        before = [left[0], *left[:-1]]
        bars = {"mark": {"type": "bar", "color": BLUE, "opacity": 0.5}, "encoding": {"x": across}}
        changes = {
            "mark": "bar",
            "encoding": {
                "x": across | {"field": "left"},
                "x2": {"field": "before"},
                "color": {
                    "field": "change",
                    "type": "nominal",
                    "scale": {"domain": ["saved", "added"], "range": [GREEN, ORANGE]},
                    "title": None,
                },
            },
        }
        told = {
            "mark": {"type": "text", "align": "left", "dx": 4},
            "encoding": {
                "x": across | {"field": "end"},
                "text": {"field": "time", "type": "nominal"},
            },
        }
        panels.append(
            {
                **columns(
                    stage=STAGES,
                    left=numbers(left),
                    before=numbers(before),
                    end=numbers(map(max, left, before)),
                    change=[
                        "saved" if now <= then else "added"
                        for now, then in zip(left, before, strict=True)
                    ],
                    time=[f"{_microseconds(seconds[stage])} µs" for stage in STAGES],
                ),
                "title": row["key"],
                "width": 180,
                "height": {"step": 20},
                "encoding": {"y": stage | ({"axis": {"labels": False}} if panels else {})},
                "layer": [bars, changes, told],
            }
        )
    facts = document["provenance"]
    return Figure(
        title=f"A training step, width × layers, batch; {facts['gpu']}, torch {facts['torch']}",
        description="Time of a training step after each stage, in percent of float32's.",
        view={"hconcat": panels},
    ).content(".png")


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.{0 if seconds >= 1e-4 else 1}f}"


def repeat_in_tf32(step: mlp.Step, count: int) -> None:
    """Takes steps of PyTorch's whose products of float32 may be in TF32, as no others may."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        mlp.repeat(step, count)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def make_stages(shape: tuple[int, int, int], device: torch.device) -> dict[str, mlp.Step]:
    """A step of each stage; compiled ones have been compiled, and graphs captured."""
    import torch
    from common.compiled import compile_whole
    from common.graphs import capture

    from convtime.nn import FusedMLP, MLPTrainer

    torch.compiler.reset()
    width, layers, batch = shape
    count = mlp.steps_of(shape)
    half_inputs, half_targets = mlp.make_data(width, width, BATCHES * batch, "mse", device)
    inputs, targets = half_inputs.float(), half_targets.float()
    torch.manual_seed(0)
    model = mlp.make_model(width, layers, width, device=device)

    def copy_of_model(dtype: torch.dtype) -> torch.nn.Module:
        own = mlp.make_model(width, layers, width, device=device, dtype=dtype)
        own.load_state_dict(model.state_dict())
        return own

    def pytorch(dtype: torch.dtype, mode: str | None = None) -> mlp.Step:
        own = copy_of_model(dtype)
        forward = mlp.make_loss(own)
        if mode is not None:
            forward = compile_whole(forward, mode)
        data = (half_inputs, half_targets) if dtype == torch.float16 else (inputs, targets)
        step = mlp.make_step(forward, own, *data, batch)
        for _ in range(5):
            step()
        return step

    def ours(tune: bool) -> mlp.Step:
        trainer = MLPTrainer(
            FusedMLP.from_sequential(model, torch.float16),
            half_inputs,
            half_targets,
            batch_size=batch,
            lr=mlp.LR,
            momentum=mlp.MOMENTUM,
            master_weights=False,
            loss_scale=None,
            tune=tune,
        )
        return capture(trainer.step)

    half = torch.float16
    steps: dict[str, mlp.Step] = {
        FLOAT32: pytorch(torch.float32),
        TF32: pytorch(torch.float32),
        FLOAT16: pytorch(half),
        COMPILED: pytorch(half, "default"),
        AUTOTUNED: pytorch(half, "max-autotune"),
        GRAPH: capture(
            mlp.make_peer("compiled graph", copy_of_model(half), half_inputs, half_targets, batch)
        ),
        UNTUNED: ours(tune=False),
        TUNED: ours(tune=True),
    }
    return {
        stage: functools.partial(repeat_in_tf32 if stage == TF32 else mlp.repeat, step, count)
        for stage, step in steps.items()
    }


def measure(net: str, device: torch.device) -> results.Row:
    import torch

    from convtime import compare

    allowed = torch.backends.cuda.matmul.allow_tf32
    # Set even where it is so: what was compiled under another setting would be compiled anew.
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        compared = compare(
            make_stages(NETS[net], device),
            method="sync",
            cache="warm",
            placement="as-is",  # the steps change what they read
            regime="as-is",
            check=None,
            interference=False,
            budget=BUDGET,
        )
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    count = mlp.steps_of(NETS[net])
    measured = compared.measurements
    return {
        "seconds": {stage: one.median / count for stage, one in measured.items()},
        "samples": {stage: len(one.seconds) for stage, one in measured.items()},
    }


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    return {net: functools.partial(measure, net, device) for net in NETS}


def tell(row: results.Row) -> str:
    return ", ".join(f"{stage} {1e6 * seconds:.1f} µs" for stage, seconds in row["seconds"].items())


if __name__ == "__main__":
    running.run_on_gpu("mlp_overhead", __doc__, summarise, make_cases, tell=tell)
