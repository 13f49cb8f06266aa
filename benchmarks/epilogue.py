"""ResNet-50's convolutions with what follows them, in one call and in separate ones.

Each row is one comparison, interleaved and after a flush of the L2 cache, on the same tensors: of
convtime's conv2d_epilogue, of PyTorch's separate operations, and of torch.compile of these. Rounds
follow each other without a pause, as layers do. What follows a convolution is a bias and a ReLU,
and a residual before the ReLU where the network has one; batch norms are taken to be folded. Who
selects plans of cuDNN's may time them (torch.backends.cudnn.benchmark), and float32 is rounded to
TF32 by all of them. Times are the sums of a call's kernels; the first call, in which plans are
built and timed or code is compiled, is given beside them.

PyTorch's own fused operation (torch.cudnn_convolution_relu) runs the same plans as convtime, which
tests make sure of. It is left out, since its first call builds every plan that cuDNN lists.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import results
from common import running

if TYPE_CHECKING:
    import torch
    from common.running import Call

    from convtime.conv.problem import ConvLayer

BATCH = 64
CONFIGURATIONS = (("float32", "nchw"), ("float16", "nhwc"))  # dtype, layout
PEERS = ("separate", "compiled")
SAMPLES = 200
COMPILE_MODE = "max-autotune-no-cudagraphs"


def summarise(rows: list[results.Row]) -> dict[str, float]:
    if not rows:
        return {}
    return {
        "speedup_over_separate_geomean": _geomean(rows, "separate"),
        "speedup_over_compile_geomean": _geomean(rows, "compiled"),
    }


def _geomean(rows: list[results.Row], peer: str) -> float:
    return statistics.geometric_mean(_speedup(row, peer) for row in rows)


def _speedup(row: results.Row, peer: str) -> float:
    ratio: float = row["seconds"][peer] / row["seconds"]["convtime"]
    return ratio


def table(rows: list[results.Row]) -> str:
    """Markdown, a line per row."""
    lines = [
        "| layer | N×C×H×W → K, R×S | after it | dtype, layout | convtime (µs) | separate (µs) "
        "| compiled (µs) | over separate | over compiled | first calls (s) |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    return "\n".join([*lines, *map(_line, rows)])


def _line(row: results.Row) -> str:
    cells = [
        row["layer"],
        row["label"],
        row["epilogue"],
        f"{row['dtype']}, {row['layout']}",
        *(f"{1e6 * row['seconds'][who]:.2f}" for who in ("convtime", *PEERS)),
        *(f"{_speedup(row, peer):.2f}" for peer in PEERS),
        ", ".join(f"{row['first_calls'][who]:.1f}" for who in ("convtime", *PEERS)),
    ]
    return f"| {' | '.join(cells)} |"


def residual_is_added(layer: ConvLayer) -> bool:
    """The last convolution of a block; the others have a ReLU alone."""
    return layer.names[0].endswith("conv3")


def layers() -> list[ConvLayer]:
    """Those that a ReLU follows: not the ones that residuals are projected by."""
    from convtime.conv.sources.resnet50 import resnet50

    return [layer for layer in resnet50(BATCH) if not layer.names[0].endswith("downsample.0")]


def measure(layer: ConvLayer, dtype: str, layout: str, device: torch.device) -> results.Row:
    import torch
    from common.compiled import compile_whole
    from torch.nn import functional as F

    from convtime import compare, ops, plan_cache

    # Before anything is called: PyTorch keeps the plan of a shape that it has selected without.
    torch.backends.cudnn.benchmark = True
    # PyTorch's convolutions may round float32 to TF32 by default; what the compiler has in their
    # place, its own kernels and products, may only if it is told.
    torch.backends.cudnn.fp32_precision = "tf32"
    torch.backends.cuda.matmul.allow_tf32 = True
    problem = layer.problem
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format

    def randn(*size: int) -> torch.Tensor:
        x = torch.randn(size, device=device, dtype=getattr(torch, dtype))
        return x.contiguous(memory_format=memory_format) if len(size) == 4 else x

    channels, outputs = problem.in_channels, problem.out_channels
    x = randn(problem.batch, channels, *problem.size)
    w = (
        randn(outputs, channels, *problem.kernel_size)
        / (channels * problem.kernel_size[0] * problem.kernel_size[1]) ** 0.5
    )
    b = randn(outputs)
    numbers: Any = problem.stride, problem.padding, problem.dilation, problem.groups
    adds = residual_is_added(layer)
    z = randn(*F.conv2d(x, w, b, *numbers).shape) if adds else None

    def separate(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, z: torch.Tensor | None
    ) -> torch.Tensor:
        y = F.conv2d(x, w, b, *numbers)
        if z is not None:
            y += z
        return F.relu(y, inplace=True)

    torch.compiler.reset()
    functions = {
        "convtime": lambda x, w, b, z: ops.conv2d_epilogue(x, w, b, *numbers, other=z),
        "separate": separate,
        "compiled": compile_whole(separate, COMPILE_MODE),
    }
    with torch.no_grad():
        outputs_of, first_calls = {}, {}
        for name, function in functions.items():
            begin = time.perf_counter()
            outputs_of[name] = function(x, w, b, z)
            outputs_of[name].ravel()[0].item()  # waits for it
            first_calls[name] = time.perf_counter() - begin
        calls: dict[str, Call] = {
            name: functools.partial(function, x, w, b, z) for name, function in functions.items()
        }
        functions["convtime"](x, w, b, z)
        tag = plan_cache()[-1].tag
        compared = compare(
            calls,
            method="kernel",
            cache="cold",
            regime="as-is",  # bursts of calls this long would be far between
            check=None,  # which round after other steps; how far they are apart is in the row
            interference=False,
            stop="count",
            min_samples=SAMPLES,
            max_samples=SAMPLES,
            budget=30.0,
        )
    reference = outputs_of["separate"].float()
    measured = compared.measurements
    return {
        "layer": layer.names[0],
        "label": problem.label,
        "epilogue": "bias, residual, ReLU" if adds else "bias, ReLU",
        "dtype": dtype,
        "layout": layout,
        "seconds": {name: measurement.median for name, measurement in measured.items()},
        "samples": len(measured["convtime"].seconds),
        "first_calls": first_calls,
        "plan": tag,
        "difference_from_separate": {
            name: float((output.float() - reference).abs().max() / reference.abs().max())
            for name, output in outputs_of.items()
        },
        "kernels": {
            name: [activity.name for activity in measurement.activities]
            for name, measurement in measured.items()
        },
    }


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    return {
        f"{layer.names[0]} {dtype} {layout}": functools.partial(
            measure, layer, dtype, layout, device
        )
        for layer, (dtype, layout) in itertools.product(layers(), CONFIGURATIONS)
    }


def tell(row: results.Row) -> str:
    return ", ".join(
        f"{name} {1e6 * seconds:.2f} µs after {row['first_calls'][name]:.1f} s"
        for name, seconds in row["seconds"].items()
    )


def main() -> None:
    running.run_on_gpu("epilogue", __doc__, summarise, make_cases, tell=tell)


if __name__ == "__main__":
    main()
