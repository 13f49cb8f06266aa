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


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """From the samples; a layer counts when it was measured in every configuration."""
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
    return summaries.markdown(
        "layer | N×C×H×W → K, R×S | dtype, layout | PyTorch (µs): | convtime (µs): "
        "| convtime / PyTorch: | bit-identical",
        (
            (
                row["layer"]["names"][0],
                row["label"],
                f"{row['dtype']}, {row['layout']}",
                *(
                    f"{1e6 * statistics.median(row[who]['seconds']):.2f}"
                    for who in ("pytorch", "convtime")
                ),
                f"{_ratio(row):.3f} [{row['ratio']['low']:.3f}, {row['ratio']['high']:.3f}]",
                summaries.yes(row["bit_identical"]),
            )
            for row in rows
        ),
    )


def picture(document: dict[str, Any]) -> bytes:
    """A PNG of the rows in PyTorch's own default, fp32 NCHW."""
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


def main() -> None:
    from convtime.conv.resnet50 import resnet50
    from convtime.device.resolve import resolve_device
    from convtime.layers.compare import compare_layers

    parser = results.argument_parser(__doc__)
    parser.add_argument("--batch", type=int, default=BATCH, help="for trying out; default: 64")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of samples a layer")
    parser.add_argument("--max-samples", type=int, default=500, help="of each side")
    options = parser.parse_args()
    device = resolve_device(options.device)
    file = running.open_file("compare_resnet50", summarise, options, device)

    def measure(dtype: str, layout: str, layer: ConvLayer) -> results.Row:
        (result,) = compare_layers(
            [layer],
            device=device,
            dtype=dtype,
            layout=layout,
            budget=options.budget,
            max_samples=options.max_samples,
        )
        return result.to_dict() | {"label": layer.problem.label}

    cases = {
        f"{dtype} {layout} {layer.name}": functools.partial(measure, dtype, layout, layer)
        for dtype, layout in CONFIGURATIONS
        for layer in resnet50(options.batch)
    }
    running.measure_pending(file, cases, _tell)


def _tell(row: results.Row) -> str:
    interval = f"[{row['ratio']['low']:.4f}, {row['ratio']['high']:.4f}]"
    return f"{_ratio(row):.4f} {interval}{'' if row['bit_identical'] else ', NOT bit-identical'}"


if __name__ == "__main__":
    main()
