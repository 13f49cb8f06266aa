"""convtime's 2-D convolution against PyTorch's on every distinct one of ResNet-50, batch 64.

In fp32 NCHW and in fp16 channels_last; by the code of `convtime conv`.
"""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import results
from common import running, summaries

if TYPE_CHECKING:
    from convtime.conv.problem import ConvLayer

BATCH = 64
CONFIGURATIONS = (("float32", "nchw"), ("float16", "nhwc"))  # dtype, layout


def make_cases(
    device: running.Device, batch: int, budget: float, samples: int
) -> dict[str, running.Measure]:
    from convtime.conv.resnet50 import resnet50
    from convtime.layers.compare import compare_layers

    def measure(dtype: str, layout: str, layer: ConvLayer) -> results.Row:
        (result,) = compare_layers(
            [layer],
            device=device,
            dtype=dtype,
            layout=layout,
            budget=budget,
            max_samples=samples,
        )
        return result.to_dict() | {"label": layer.problem.label}

    return {
        f"{dtype} {layout} {layer.name}": functools.partial(measure, dtype, layout, layer)
        for dtype, layout in CONFIGURATIONS
        for layer in resnet50(batch)
    }


def summarise(rows: list[results.Row]) -> dict[str, float]:
    measured: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for row in rows:
        measured[row["layer"]["names"][0]].add((row["dtype"], row["layout"]))
    return {
        "layers": sum(found == set(CONFIGURATIONS) for found in measured.values()),
        "fraction_bit_identical": sum(row["bit_identical"] for row in rows) / len(rows),
        "time_ratio_min": min(map(_ratio, rows)),
        "time_ratio_max": max(map(_ratio, rows)),
    }


def _ratio(row: results.Row) -> float:
    return summaries.median_ratio(row["convtime"]["seconds"], row["pytorch"]["seconds"])


def table(rows: list[results.Row]) -> str:
    def line(row: results.Row) -> results.Row:
        medians = {who: statistics.median(row[who]["seconds"]) for who in ("pytorch", "convtime")}
        bits = summaries.yes(row["bit_identical"])
        return row | medians | {"name": row["layer"]["names"][0], "ours": _ratio(row), "bits": bits}

    return summaries.filled(
        "layer | N×C×H×W → K, R×S | dtype, layout | PyTorch (µs): | convtime (µs): "
        "| convtime / PyTorch: | bit-identical",
        "{name} | {label} | {dtype}, {layout} | {pytorch:.2fµ} | {convtime:.2fµ} "
        "| {ours:.3f} [{ratio[low]:.3f}, {ratio[high]:.3f}] | {bits}",
        map(line, rows),
    )


def picture(document: dict[str, Any]) -> bytes:
    from convtime.layers.compare import LayerResult
    from convtime.layers.show import layers_figure

    facts = document["provenance"]
    shown = [
        LayerResult.from_dict(row, facts)
        for row in document["rows"]
        if (row["dtype"], row["layout"]) == CONFIGURATIONS[0]
    ]
    conditions = f"{facts['gpu']}, torch {facts['torch']}, cuDNN {facts['cudnn']}"
    title = f"ResNet-50's convolutions, batch {BATCH}, float32 NCHW; {conditions}"
    return layers_figure(shown, title).content(".svg")


if __name__ == "__main__":
    running.run("compare_resnet50", make_cases, batch=BATCH, budget=1.0, samples=500)
