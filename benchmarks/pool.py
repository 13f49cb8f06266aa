"""How relu_max_pool2d compares with PyTorch, the compiler and its bounds, forward and backward.

Each row is one comparison, interleaved and after a flush of the L2 cache: of convtime's kernel, of
eager PyTorch's, of torch.compile's (forward), and of a copy, which is torch.relu of as many
elements as read and write as many bytes as the pass has to. Times are the sums of a call's kernels.
The bound of a forward pass is the longer of the copy and of its comparisons, an element of each
window each, at the rate that the GPU reaches in registers.

Rows are of the networks' shapes, and of configurations that are drawn by a seed: windows of 2 to 7,
rectangular ones too, strides up to the window, paddings up to half of it, dilations of 1 and 2, and
ceil_mode; planes and channels of AlexNet, Inception, LeNet and ResNet stems, odd planes, and
channels of any number; and 0.1 MB (float16) to 200 MB (float32). All are measured forward in both
dtypes and layouts; backward, drawn ones in one of these four each.

Compile in parallel first: for i in $(seq 16); do pool.py --compile $i/16 & done; wait
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import results
from common import families, running, summaries
from common.running import Case

if TYPE_CHECKING:
    import random

    import torch
    from common.running import Call

DTYPES = {"fp16": "float16", "fp32": "float32"}
LAYOUTS = {"nchw": "contiguous_format", "nhwc": "channels_last"}
PASSES = ("forward", "backward")
COMPILE_MODE = "max-autotune-no-cudagraphs"
DRAWN = 60
SECONDS = 0.3  # of a comparison
ELEMENTS = 5e4, 5e7  # of an input
# Of inputs above it, the share of the bound is judged: smaller ones take as long as a launch does.
BOUND_BYTES = 16e6
ITEM_BYTES = {"fp16": 2, "fp32": 4}
# Channels, and height and width, before the pooling layers of networks
PLANES = {
    "AlexNet": ((64, 55), (192, 27), (256, 13)),
    "Inception": (
        *((64, 112), (192, 56), (480, 28), (832, 14)),
        *((64, 147), (192, 71), (288, 35), (768, 17)),
    ),
    "LeNet": ((6, 28), (16, 10)),
}
ORIGINS = (*PLANES, "ResNet stem", "odd planes", "any channels")


@dataclasses.dataclass(frozen=True)
class Pool:
    """A configuration; window, stride and padding are (vertical, horizontal)."""

    shape: tuple[int, int, int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def label(self) -> str:
        sizes = map(dict.fromkeys, (self.stride, self.padding))
        stride, padding = ("×".join(map(str, each)) for each in sizes)
        label = f"{self.window[0]}×{self.window[1]}/{stride}"
        label += f" p{padding}" if any(self.padding) else ""
        label += f" d{self.dilation}" if self.dilation > 1 else ""
        return label + (" ceil" if self.ceil_mode else "")


SHAPE = (32, 64, 112, 112)
NETWORKS = {"3×3/2": Pool(SHAPE, (3, 3), (2, 2), (1, 1)), "2×2/2": Pool(SHAPE, (2, 2), (2, 2))}


def draw(seed: int, index: int) -> Pool:
    source = families.chance("pool", seed, index)
    channels, height, width = _draw_planes(source, ORIGINS[index % len(ORIGINS)])
    elements = families.log_uniform(source, *ELEMENTS)
    batch = max(1, round(elements / (channels * height * width)))
    square = source.random() < 0.5
    rows = source.randint(2, 7)
    columns = rows if square else source.randint(2, 7)
    stride = source.randint(1, rows)
    dilation = 2 if source.random() < 0.25 else 1
    if dilation * (max(rows, columns) - 1) >= min(height, width):
        dilation = 1  # or the window would be larger than a plane
    return Pool(
        shape=(batch, channels, height, width),
        window=(rows, columns),
        stride=(stride, stride if square else source.randint(1, columns)),
        padding=(source.randint(0, rows // 2), source.randint(0, columns // 2)),
        dilation=dilation,
        ceil_mode=source.random() < 0.5,
    )


def _draw_planes(source: random.Random, origin: str) -> tuple[int, int, int]:
    if origin in PLANES:
        channels, size = source.choice(PLANES[origin])
        return channels, size, size
    if origin == "ResNet stem":
        return 32 * source.randint(1, 10), 112, 112
    if origin == "odd planes":
        height, width = (2 * source.randint(3, 63) + 1 for _ in range(2))
        return 8 * source.randint(1, 40), height, width
    size = source.randint(7, 112)
    return 8 * source.randint(0, 40) + source.randint(1, 7), size, size


def make_cases(device: torch.device, seed: int, budget: float) -> dict[str, Case]:
    variants = list(itertools.product(DTYPES, LAYOUTS))

    drawn = [(f"drawn {index}", draw(seed, index), seed) for index in range(DRAWN)]
    named = [(name, pool, None) for name, pool in NETWORKS.items()]
    chosen: list[tuple[str, str, Pool, int | None, tuple[str, str]]] = [
        (which, *each, variant)
        for which, each, variant in itertools.product(PASSES, named, variants)
    ]
    for index, each in enumerate(drawn):
        chosen += [("forward", *each, variant) for variant in variants]
        chosen.append(("backward", *each, variants[index // len(ORIGINS) % len(variants)]))
    cases = {}
    for which, name, pool, drawn_by, variant in chosen:
        compile_case = functools.partial(compile_beforehand, pool, *variant, device)
        cases[" ".join((which, name, *variant))] = Case(
            functools.partial(measure, which, pool, *variant, device, budget),
            compile_case if which == "forward" else None,
            drawn_by,
        )
    return cases


def make_input(pool: Pool, dtype: str, layout: str, device: torch.device) -> torch.Tensor:
    import torch

    x = torch.randn(pool.shape, device=device, dtype=getattr(torch, DTYPES[dtype]))
    return x.contiguous(memory_format=getattr(torch, LAYOUTS[layout]))


def functions_of(pool: Pool) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    from torch.nn import functional as F

    from convtime import ops

    numbers: Any = (pool.window, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
    return {
        "convtime": lambda x: ops.relu_max_pool2d(x, *numbers),
        "eager": lambda x: F.max_pool2d(F.relu(x), *numbers),
    }


def compiled_call(pool: Pool, x: torch.Tensor) -> Call:
    import torch
    from common.cuda import compile_whole

    torch.compiler.reset()
    call = functools.partial(compile_whole(functions_of(pool)["eager"], COMPILE_MODE), x)
    call()
    return call


def compile_beforehand(pool: Pool, dtype: str, layout: str, device: torch.device) -> None:
    x = make_input(pool, dtype, layout, device)
    functions_of(pool)["convtime"](x)
    compiled_call(pool, x)


def measure(
    which: str, pool: Pool, dtype: str, layout: str, device: torch.device, seconds: float
) -> results.Row:
    import torch

    functions = functions_of(pool)
    x = make_input(pool, dtype, layout, device)
    expected = functions["eager"](x)
    if not torch.equal(functions["convtime"](x), expected):
        raise RuntimeError(f"convtime's result differs from PyTorch's for {pool}")
    # The backward pass has to know which element each output was.
    moved = x.nbytes + expected.nbytes + (expected.numel() if which == "backward" else 0)
    copied = torch.randn(moved // (2 * x.itemsize), device=device, dtype=x.dtype)
    calls: dict[str, Call]
    if which == "forward":
        calls = {name: functools.partial(function, x) for name, function in functions.items()}
        calls["compiled"] = compiled_call(pool, x)
    else:
        x.requires_grad_()
        grad = torch.randn_like(expected)
        calls = {
            name: functools.partial(torch.autograd.grad, function(x), x, grad, retain_graph=True)
            for name, function in functions.items()
        }
    calls["copy"] = functools.partial(torch.relu, copied)
    row = {
        "direction": which,
        "shape": list(pool.shape),
        "window": pool.label,
        "dtype": dtype,
        "layout": layout,
        "bytes": moved,
        **families.row_of(families.compare_kernels(calls, seconds)),
    }
    if which == "forward" and is_bounded(row):
        from common.comparisons import comparisons_per_second

        comparisons = expected.numel() * math.prod(pool.window)
        row["comparison_seconds"] = comparisons / comparisons_per_second(x.dtype, device)
    return row


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """The number of drawn forward passes; speedups over all rows."""
    forward, backward = (_of(rows, direction) for direction in PASSES)
    summary: dict[str, float] = {"configurations": sum("seed" in row for row in forward)}
    if bounded := [share_of_bound(row) for row in forward if is_bounded(row)]:
        summary["share_of_copy_bandwidth_min"] = summaries.least(bounded)
    if forward:
        compiled = _over(forward, "compiled")
        summary["speedup_over_eager_min"] = summaries.least(_over(forward, "eager"))
        summary["speedup_over_compile_min"] = summaries.least(compiled)
        summary["speedup_over_compile_geomean"] = summaries.geomean(compiled)
    if backward:
        summary["backward_speedup_over_eager_min"] = summaries.least(_over(backward, "eager"))
    return summary


def _of(rows: Iterable[results.Row], direction: str) -> list[results.Row]:
    return [row for row in rows if row["direction"] == direction]


def _over(rows: Iterable[results.Row], peer: str) -> list[summaries.Speedup]:
    return [summaries.speedup(row, peer) for row in rows]


def is_bounded(row: results.Row) -> bool:
    return math.prod(row["shape"]) * ITEM_BYTES[row["dtype"]] > BOUND_BYTES


def share_of_bound(row: results.Row) -> summaries.Speedup:
    copy = row["seconds"]["copy"]
    return summaries.speedup(row, "copy").times(max(copy, row.get("comparison_seconds", 0)) / copy)


def distribution_table(rows: list[results.Row]) -> str:
    groups: dict[str, list[summaries.Speedup]] = {}
    for dtype, layout in itertools.product(DTYPES, LAYOUTS):
        variant = f"{dtype}, {layout}"
        those = [row for row in rows if (row["dtype"], row["layout"]) == (dtype, layout)]
        ahead, back = (_of(those, direction) for direction in PASSES)
        groups[f"over torch.compile, forward, {variant}"] = _over(ahead, "compiled")
        groups[f"over eager, forward, {variant}"] = _over(ahead, "eager")
        groups[f"over eager, backward, {variant}"] = _over(back, "eager")
        groups[f"of the bound, forward above 16 MB, {variant}"] = [
            share_of_bound(row) for row in ahead if is_bounded(row)
        ]
    table = summaries.distribution("convtime's speed", dict(sorted(groups.items())))
    return f"{table}\n\n{summaries.describe_seeds(rows)}"


def table(rows: list[results.Row]) -> str:
    def line(row: results.Row) -> results.Row:
        return {"compiled": None, **row, **row["seconds"]} | {
            "sizes": "×".join(map(str, row["shape"])),
            "rate": 1e-12 * row["bytes"] / row["seconds"]["convtime"],
            "share": 100 * share_of_bound(row).value,
        }

    return summaries.filled(
        "pass | shape | window | dtype | layout | MB: | convtime (µs): | TB/s: | of the bound: "
        "| eager (µs): | compiled (µs):",
        "{direction} | {sizes} | {window} | {dtype} | {layout} | {bytes:.1fM} "
        "| {convtime:.2fµ} | {rate:.2f} | {share:.0f} % | {eager:.1fµ} | {compiled:.1fµ}",
        map(line, rows),
    )


if __name__ == "__main__":
    running.run("pool", make_cases, seed=families.SEED, budget=SECONDS)
