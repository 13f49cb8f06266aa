"""Convolutions with what follows them, in one call and in separate ones; ResNet-50's, and drawn.

Each row is one comparison, interleaved and after a flush of the L2 cache, on the same tensors: of
convtime's conv2d_epilogue, of PyTorch's separate operations, and of torch.compile of these. What
follows a convolution is a bias and a ReLU, and a residual before the ReLU where the network has
one. cuDNN's plans may be timed (torch.backends.cudnn.benchmark), and float32 is rounded to TF32 by
all of them. Times are the sums of a call's kernels; the first call is given beside them.

Drawn convolutions have windows of 1, 3, 5 and 7, strides and dilations of 1 and 2, a padding that
keeps the size or none, planes of 7² to 112², and 16 to 1024 channels before and after, a quarter of
them of any number and the others of multiples of 8. They take up to 50 GFLOP, in batches of up to
256, and half of them add a residual. Each is measured in one dtype and layout.

Compile in parallel first: for i in $(seq 16); do epilogue.py --compile $i/16 & done; wait
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import results
from common import families, running, summaries
from common.running import Case

if TYPE_CHECKING:
    import random

    import torch

    from convtime.conv.problem import ConvProblem

BATCH = 64  # of ResNet-50's
CONFIGURATIONS = (("float32", "nchw"), ("float16", "nhwc"))  # dtype, layout
PEERS = ("separate", "compiled")
COMPILE_MODE = "max-autotune-no-cudagraphs"
DRAWN = 40
SECONDS = 0.4  # of a comparison
FLOPS = 1e9, 5e10  # of a drawn convolution
MOST_ELEMENTS = 2**26  # of its input or output
LARGEST_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Fused:
    """A convolution with a bias and a ReLU, and whether a residual is added before the ReLU."""

    name: str
    problem: ConvProblem
    adds: bool


def draw(seed: int, index: int) -> Fused:
    source = families.chance("epilogue", seed, index)
    single = _draw_single(source)
    while single.flops > FLOPS[1]:
        single = _draw_single(source)
    outputs = single.out_channels * math.prod(single.output_size)
    batch = min(
        LARGEST_BATCH,
        MOST_ELEMENTS // max(outputs, single.in_channels * math.prod(single.size)),
        int(families.log_uniform(source, *FLOPS) / single.flops),
    )
    problem = dataclasses.replace(single, batch=max(1, batch))
    return Fused(f"drawn {index}", problem, source.random() < 0.5)


def _draw_single(source: random.Random) -> ConvProblem:
    """The convolution of one image."""
    from convtime.conv.problem import ConvProblem

    window = source.choice((1, 1, 1, 3, 3, 3, 5, 7))
    size = source.randint(7, 112)
    dilation = 2 if source.random() < 0.2 and 2 * (window - 1) < size else 1
    padding = dilation * (window // 2) if source.random() < 0.75 else 0
    return ConvProblem(
        batch=1,
        in_channels=_draw_channels(source),
        size=(size, size),
        out_channels=_draw_channels(source),
        kernel_size=(window, window),
        stride=(1, 1) if source.random() < 0.75 else (2, 2),
        padding=(padding, padding),
        dilation=(dilation, dilation),
    )


def _draw_channels(source: random.Random) -> int:
    channels = families.log_uniform(source, 16, 1024)
    return round(channels) if source.random() < 0.25 else 8 * round(channels / 8)


def resnet50() -> list[Fused]:
    """Those that a ReLU follows: not the ones that residuals are projected by."""
    from convtime.conv.resnet50 import resnet50

    return [
        # A residual is added after the last convolution of a block.
        Fused(layer.names[0], layer.problem, layer.names[0].endswith("conv3"))
        for layer in resnet50(BATCH)
        if not layer.names[0].endswith("downsample.0")
    ]


def make_cases(device: torch.device, seed: int, budget: float) -> dict[str, Case]:
    chosen: list[tuple[Fused, tuple[str, str], int | None]]
    chosen = [(*each, None) for each in itertools.product(resnet50(), CONFIGURATIONS)]
    chosen += [
        (draw(seed, index), CONFIGURATIONS[index % len(CONFIGURATIONS)], seed)
        for index in range(DRAWN)
    ]
    return {
        " ".join((fused.name, *configuration)): Case(
            functools.partial(measure, fused, *configuration, device, budget),
            functools.partial(compile_beforehand, fused, *configuration, device),
            drawn_by,
        )
        for fused, configuration, drawn_by in chosen
    }


def prepare(
    fused: Fused, dtype: str, layout: str, device: torch.device
) -> tuple[dict[str, Callable[..., torch.Tensor]], tuple[torch.Tensor | None, ...]]:
    """Functions of convtime and its peers, which nothing has called yet, and their arguments."""
    import torch
    from common.cuda import compile_whole
    from torch.nn import functional as F

    from convtime import ops

    # Before anything is called: PyTorch keeps the plan of a shape that it has selected without.
    torch.backends.cudnn.benchmark = True
    # PyTorch's convolutions may round float32 to TF32 by default; what the compiler has in their
    # place, its own kernels and products, may only if it is told.
    torch.backends.cudnn.fp32_precision = "tf32"
    torch.backends.cuda.matmul.allow_tf32 = True
    problem = fused.problem
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format

    def randn(*size: int) -> torch.Tensor:
        x = torch.randn(size, device=device, dtype=getattr(torch, dtype))
        return x.contiguous(memory_format=memory_format) if len(size) == 4 else x

    channels, outputs = problem.in_channels, problem.out_channels
    x = randn(problem.batch, channels, *problem.size)
    window = channels, *problem.kernel_size
    w = randn(outputs, *window) / math.prod(window) ** 0.5
    b = randn(outputs)
    numbers: Any = problem.stride, problem.padding, problem.dilation, problem.groups
    z = randn(*F.conv2d(x, w, b, *numbers).shape) if fused.adds else None

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
    return functions, (x, w, b, z)


def compile_beforehand(fused: Fused, dtype: str, layout: str, device: torch.device) -> None:
    import torch

    functions, arguments = prepare(fused, dtype, layout, device)
    with torch.no_grad():
        functions["convtime"](*arguments)
        functions["compiled"](*arguments)


def measure(
    fused: Fused, dtype: str, layout: str, device: torch.device, seconds: float
) -> results.Row:
    import torch

    functions, arguments = prepare(fused, dtype, layout, device)
    with torch.no_grad():
        first_calls = {}
        for name, function in functions.items():
            begin = time.perf_counter()
            function(*arguments).ravel()[0].item()  # waits for it
            first_calls[name] = time.perf_counter() - begin
        calls = {
            name: functools.partial(function, *arguments) for name, function in functions.items()
        }
        compared = families.compare_kernels(calls, seconds)
    return {
        "layer": fused.name,
        "label": fused.problem.label,
        "epilogue": "bias, residual, ReLU" if fused.adds else "bias, ReLU",
        "dtype": dtype,
        "layout": layout,
        **families.row_of(compared),
        "first_calls": first_calls,
    }


def summarise(rows: list[results.Row]) -> dict[str, float]:
    summary: dict[str, float] = {"rows": len(rows)}
    for name, peer in zip(("separate", "compile"), PEERS, strict=True) if rows else ():
        speedups = [summaries.speedup(row, peer) for row in rows]
        summary[f"speedup_over_{name}_geomean"] = summaries.geomean(speedups)
        summary[f"speedup_over_{name}_min"] = summaries.least(speedups)
    return summary


def distribution_table(rows: list[results.Row]) -> str:
    names = {"separate": "separate calls", "compiled": "torch.compile"}
    groups = {
        f"over {names[peer]}, {dtype}, {layout}": [
            summaries.speedup(row, peer)
            for row in rows
            if (row["dtype"], row["layout"]) == (dtype, layout)
        ]
        for peer, (dtype, layout) in itertools.product(PEERS, CONFIGURATIONS)
    }
    table = summaries.distribution("convtime's speed", groups)
    return f"{table}\n\n{summaries.describe_seeds(rows)}"


def table(rows: list[results.Row]) -> str:
    over = ({peer: summaries.speedup(row, peer).value for peer in PEERS} for row in rows)
    return summaries.filled(
        "layer | N×C×H×W → K, R×S | after it | dtype, layout | convtime (µs): | separate (µs): "
        "| compiled (µs): | over separate: | over compiled: | first calls (s):",
        "{layer} | {label} | {epilogue} | {dtype}, {layout} | {seconds[convtime]:.2fµ} "
        "| {seconds[separate]:.2fµ} | {seconds[compiled]:.2fµ} | {over[separate]:.2f} "
        "| {over[compiled]:.2f} | {first_calls[convtime]:.1f}, {first_calls[separate]:.1f}, "
        "{first_calls[compiled]:.1f}",
        (row | {"over": speedups} for row, speedups in zip(rows, over, strict=True)),
    )


if __name__ == "__main__":
    running.run("epilogue", make_cases, seed=families.SEED, budget=SECONDS)
