"""How close relu_max_pool2d comes to the memory's bandwidth, forward and backward.

Each row is one comparison, interleaved and after a flush of the L2 cache: of convtime's kernel, of
eager PyTorch's and torch.compile's, and of a copy, which is torch.relu of as many elements of the
same dtype as read and write as many bytes as the pass has to: input and output, or the gradients of
both and a byte per output that says which element it was. Times are the sums of a call's kernels.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

import results
from common import running

if TYPE_CHECKING:
    import torch
    from common.running import Call

SHAPE = (32, 64, 112, 112)
WINDOWS = {"3×3/2": (3, 2, 1), "2×2/2": (2, 2, 0)}  # kernel size, stride, padding
DTYPES = {"fp16": "float16", "fp32": "float32"}
LAYOUTS = {"nchw": "contiguous_format", "nhwc": "channels_last"}
PASSES = ("forward", "backward")
SAMPLES = 200
COMPILE_MODE = "max-autotune-no-cudagraphs"


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Shares are of both passes, speedups of the forward pass unless named otherwise."""
    forward = [row for row in rows if row["direction"] == "forward"]
    backward = [row for row in rows if row["direction"] == "backward"]
    summary = {}
    if rows:
        summary["share_of_copy_bandwidth_min"] = min(_ratios(rows, "copy"))
    if forward:
        compiled = _ratios(forward, "compiled")
        summary["speedup_over_eager_min"] = min(_ratios(forward, "eager"))
        summary["speedup_over_compile_min"] = min(compiled)
        summary["speedup_over_compile_geomean"] = statistics.geometric_mean(compiled)
    if backward:
        summary["backward_speedup_over_eager_min"] = min(_ratios(backward, "eager"))
    return summary


def _ratios(rows: Iterable[results.Row], other: str) -> list[float]:
    return [row["seconds"][other] / row["seconds"]["convtime"] for row in rows]


def table(rows: list[results.Row]) -> str:
    """Markdown, a line per row: bytes, and the rate and share of a copy's at which they move."""
    lines = [
        "| pass | window | dtype | layout | MB | convtime (µs) | TB/s | of a copy's rate "
        "| eager (µs) | compiled (µs) |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    return "\n".join([*lines, *map(_line, rows)])


def _line(row: results.Row) -> str:
    ours = row["seconds"]["convtime"]
    (share,) = _ratios([row], "copy")
    cells = [
        row["direction"],
        row["window"],
        row["dtype"],
        row["layout"],
        f"{1e-6 * row['bytes']:.1f}",
        f"{1e6 * ours:.2f}",
        f"{1e-12 * row['bytes'] / ours:.2f}",
        f"{100 * share:.0f} %",
        *(f"{1e6 * row['seconds'][peer]:.1f}" for peer in ("eager", "compiled")),
    ]
    return f"| {' | '.join(cells)} |"


def bytes_of(which: str, input_bytes: int, output_bytes: int, outputs: int) -> int:
    """What a pass has to move: the backward pass has to know which element each output was."""
    return input_bytes + output_bytes + (outputs if which == "backward" else 0)


def measure(which: str, window: str, dtype: str, layout: str, device: torch.device) -> results.Row:
    import torch
    from common.compiled import compile_whole
    from torch.nn import functional as F

    from convtime import compare, ops

    numbers = WINDOWS[window]
    torch_dtype = getattr(torch, DTYPES[dtype])
    x = torch.randn(SHAPE, device=device, dtype=torch_dtype)
    x = x.contiguous(memory_format=getattr(torch, LAYOUTS[layout]))
    x.requires_grad_(which == "backward")

    def eager(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(x), *numbers)

    torch.compiler.reset()
    functions = {
        "convtime": lambda x: ops.relu_max_pool2d(x, *numbers),
        "eager": eager,
        "compiled": compile_whole(eager, COMPILE_MODE),
    }
    output = functions["convtime"](x)
    moved = bytes_of(which, x.nbytes, output.nbytes, output.numel())
    copied = torch.randn(moved // (2 * x.itemsize), device=device, dtype=torch_dtype)
    calls: dict[str, Call] = {"copy": functools.partial(torch.relu, copied)}
    grad = torch.randn_like(output)
    # Or a compiled backward pass would use the memory of what it can be run once with.
    with torch._functorch.config.patch(donated_buffer=False):
        for name, function in functions.items():
            if which == "forward":
                calls[name] = functools.partial(function, x)
            else:
                calls[name] = functools.partial(
                    torch.autograd.grad, function(x), x, grad, retain_graph=True
                )
            calls[name]()
        compared = compare(
            calls,
            method="kernel",
            cache="cold",
            check=None,  # the copy is of other data
            interference=False,
            stop="count",
            min_samples=SAMPLES,
            max_samples=SAMPLES,
            budget=30.0,
        )
    measured = compared.measurements
    return {
        "direction": which,
        "window": window,
        "dtype": dtype,
        "layout": layout,
        "bytes": moved,
        "seconds": {name: measurement.median for name, measurement in measured.items()},
        "samples": len(measured["convtime"].seconds),
        "kernels": {
            name: [activity.name for activity in measurement.activities]
            for name, measurement in measured.items()
        },
    }


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    return {
        " ".join(case): functools.partial(measure, *case, device)
        for case in itertools.product(PASSES, WINDOWS, DTYPES, LAYOUTS)
    }


def tell(row: results.Row) -> str:
    return ", ".join(f"{name} {1e6 * seconds:.2f} µs" for name, seconds in row["seconds"].items())


def main() -> None:
    running.run_on_gpu("pool", __doc__, summarise, make_cases, tell=tell)


if __name__ == "__main__":
    main()
