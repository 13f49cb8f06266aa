"""What each step on the way to a fast kernel gains, and what each compiler setting costs.

Rows of the subject "pool" are one comparison each, interleaved and after a flush of the L2 cache:
of all steps and builds of the tutorial's ReLU and max-pooling, of convtime's own kernel, of eager
PyTorch's two, and of a copy, which is torch.relu of as many elements as move as many bytes. So are
those of "activation", of ReLU, GELU and their gradients. "counters" is what the hardware counts of
the steps, where it may be read. "convolution" is one convolution in float32, TF32, float16 and
bfloat16, with how far each is from the one in 64 bits. Times are the sums of a call's kernels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import results
from common import running, summaries

if TYPE_CHECKING:
    import torch
    from common.running import Call


SHAPE = (32, 64, 112, 112)
WINDOW = (3, 2, 1)  # kernel size, stride, padding
ELEMENTS = 2**24
DTYPES = {"fp16": "float16", "fp32": "float32"}
LAYOUTS = {"nchw": "contiguous_format", "nhwc": "channels_last"}
DIRECTIONS = ("forward", "gradient")
# Batch, channels before and after, height and width; 3×3 with a padding of 1, channels last.
CONVOLUTIONS = {"64 channels": (32, 64, 64, 56), "512 channels": (32, 512, 512, 14)}
PRECISIONS = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
PLAIN = "plain"
METRICS = {
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "instructions": "smsp__inst_executed.sum",
}
SAMPLES = 100


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Whether all kernels compute the same; how fast they are is for the tables to say."""
    pools = _of(rows, "pool")
    activations = _of(rows, "activation")
    summary: dict[str, float] = {}
    if pools:
        summary["pool_kernels"] = sum(len(row["facts"]) for row in pools)
        summary["pool_results_that_differ"] = sum(len(row["differ"]) for row in pools)
    if activations:
        summary["activation_error_max"] = max(
            error
            for row in activations
            for name, error in row["errors"].items()
            if name.endswith(f"/{PLAIN}")
        )
    return summary


def _of(rows: Iterable[results.Row], subject: str) -> list[results.Row]:
    return [row for row in rows if row["subject"] == subject]


# --- Tables ---------------------------------------------------------------------------------------


def table(rows: list[results.Row]) -> str:
    """Markdown: the steps of pooling as they are built without settings, and what they lead to."""
    lines = []
    for row in _of(rows, "pool"):
        steps = [name for name in row["facts"] if name.endswith(f"/{PLAIN}")]
        for name in [*steps, "convtime", "eager"]:
            facts = row["facts"].get(name)
            taken = (facts["registers"], f"{100 * facts['occupancy']:.0f} %") if facts else "––"
            step = name.partition("/")[0]
            lines.append((row["dtype"], row["layout"], step, *_rate(row, name), *taken))
    return summaries.markdown(
        "dtype | layout | step | µs: | TB/s: | of a copy's rate: | registers: "
        "| threads of a multiprocessor's:",
        lines,
    )


def _rate(row: results.Row, name: str) -> tuple[str, ...]:
    """A time, the bytes that had to be moved over it, and that over a copy's."""
    seconds = row["seconds"][name]
    share = row["seconds"]["copy"] / seconds
    return f"{1e6 * seconds:.2f}", f"{1e-12 * row['bytes'] / seconds:.2f}", f"{100 * share:.0f} %"


def builds_table(rows: list[results.Row]) -> str:
    """Markdown: the time of each build of each step, and what it takes of a multiprocessor."""
    pools = _of(rows, "pool")
    builds = list(dict.fromkeys(name.partition("/")[2] for row in pools for name in row["facts"]))
    lines = []
    for row in pools:
        for step in dict.fromkeys(name.partition("/")[0] for name in row["facts"]):
            cells = [_build_cell(row, f"{step}/{build}") for build in builds]
            lines.append((row["dtype"], row["layout"], step, *cells))
    table = summaries.markdown(_header("dtype | layout | step", builds), lines)
    return f"{table}\n\nMicroseconds (registers, and bytes that these had no room for)."


def _header(names: str, numbers: Iterable[str]) -> str:
    return names + "".join(f" | {name}:" for name in numbers)


def _build_cell(row: results.Row, name: str) -> str:
    facts = row["facts"][name]
    spilled = f" + {facts['local_bytes']} B" if facts["local_bytes"] else ""
    return f"{1e6 * row['seconds'][name]:.2f} ({facts['registers']}{spilled})"


def counters_table(rows: list[results.Row]) -> str:
    """Markdown: what the hardware counted of a call of each step."""
    counted = _of(rows, "counters")
    if unavailable := [row["reason"] for row in counted if row["reason"]]:
        return f"Not counted: {unavailable[0]}."
    lines = []
    for row in counted:
        for step, totals in row["totals"].items():
            sectors, requests = totals["load_sectors"], totals["load_requests"]
            cells = (
                _count(totals["dram_read"], 1e-6, 1),
                _count(totals["dram_written"], 1e-6, 1),
                _count(sectors / requests if sectors and requests else None, 1, 1),
                _count(totals["bank_conflicts"], 1, 0),
                _count(totals["instructions"], 1e-6, 2),
            )
            lines.append((row["dtype"], row["layout"], step, *cells))
    return summaries.markdown(
        "dtype | layout | step | MB read: | MB written: | sectors per load: | bank conflicts: "
        "| million instructions:",
        lines,
    )


def _count(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{factor * value:.{digits}f}"


def activations_table(rows: list[results.Row]) -> str:
    """Markdown: each activation and gradient by each step and build, with its error."""
    activations = _of(rows, "activation")
    names = list(dict.fromkeys(name for row in activations for name in row["errors"]))
    lines = []
    for row in activations:
        cells = [f"{1e6 * row['seconds'][name]:.2f} ({row['errors'][name]:.1e})" for name in names]
        function = row["function"] + (", gradient" if row["direction"] == "gradient" else "")
        lines.append((function, row["dtype"], f"{1e6 * row['seconds']['copy']:.2f}", *cells))
    table = summaries.markdown(_header("function | dtype | copy:", names), lines)
    note = "error: by how much it is off, at most, of the larger of the number and 1"
    return f"{table}\n\nMicroseconds ({note})."


def convolutions_table(rows: list[results.Row]) -> str:
    """Markdown: one convolution in each precision, with its error."""
    header = "convolution | precision | µs: | TFLOP/s: | root mean square of errors: "
    lines = [
        (
            row["label"],
            precision,
            f"{1e6 * seconds:.2f}",
            f"{1e-12 * row['flops'] / seconds:.1f}",
            *(f"{row[errors][precision]:.1e}" for errors in ("errors", "largest_errors")),
        )
        for row in _of(rows, "convolution")
        for precision, seconds in row["seconds"].items()
    ]
    table = summaries.markdown(f"{header}| largest error:", lines)
    return f"{table}\n\nErrors are of the root mean square of the outputs in 64 bits."


# --- Measuring ------------------------------------------------------------------------------------


def medians(calls: Mapping[str, Call]) -> dict[str, float]:
    from convtime import compare

    compared = compare(
        calls,
        method="kernel",
        cache="cold",
        check=None,  # which each row does itself, by what it is about
        interference=False,
        stop="count",
        min_samples=SAMPLES,
        max_samples=SAMPLES,
        budget=20.0,
    )
    return {name: one.median for name, one in compared.measurements.items()}


def pool_input(dtype: str, layout: str, device: torch.device) -> torch.Tensor:
    import torch

    x = torch.randn(SHAPE, device=device, dtype=getattr(torch, DTYPES[dtype]))
    return x.contiguous(memory_format=getattr(torch, LAYOUTS[layout]))


def measure_pool(dtype: str, layout: str, device: torch.device) -> results.Row:
    import dataclasses

    import torch
    from torch.nn import functional as F

    from convtime import ops
    from convtime.ops import tutorial

    x = pool_input(dtype, layout, device)
    expected = F.max_pool2d(F.relu(x), *WINDOW)
    moved = x.nbytes + expected.nbytes
    copied = torch.randn(moved // (2 * x.itemsize), device=device, dtype=x.dtype)
    variants = {
        f"{step}/{build}": (step, build)
        for step, build in itertools.product(tutorial.POOL_STEPS, tutorial.POOL_BUILDS)
    }
    pools: dict[str, Call] = {
        name: functools.partial(tutorial.relu_max_pool2d, x, *WINDOW, step=step, build=build)
        for name, (step, build) in variants.items()
    }
    pools["convtime"] = functools.partial(ops.relu_max_pool2d, x, *WINDOW)
    pools["eager"] = lambda: F.max_pool2d(F.relu(x), *WINDOW)
    differ = [name for name, call in pools.items() if not torch.equal(_tensor(call()), expected)]
    return {
        "subject": "pool",
        "dtype": dtype,
        "layout": layout,
        "bytes": moved,
        "seconds": medians({"copy": functools.partial(torch.relu, copied), **pools}),
        "facts": {
            name: dataclasses.asdict(
                tutorial.relu_max_pool2d_facts(x, *WINDOW, step=step, build=build)
            )
            for name, (step, build) in variants.items()
        },
        "differ": differ,
    }


def _tensor(result: object) -> torch.Tensor:
    import torch

    assert isinstance(result, torch.Tensor)
    return result


def measure_counters(dtype: str, layout: str, device: torch.device) -> results.Row:
    import convtime
    from convtime import ops
    from convtime.ops import tutorial

    x = pool_input(dtype, layout, device)
    pools: dict[str, Call] = {
        step: functools.partial(tutorial.relu_max_pool2d, x, *WINDOW, step=step)
        for step in tutorial.POOL_STEPS
    }
    pools["convtime"] = functools.partial(ops.relu_max_pool2d, x, *WINDOW)
    row: results.Row = {
        "subject": "counters",
        "dtype": dtype,
        "layout": layout,
        "totals": {},
        "reason": "",
    }
    try:
        for name, call in pools.items():
            # Each call anew: where CUPTI repeats a kernel, the cache holds what that left there.
            counted = convtime.counters(
                call,
                metrics=tuple(METRICS.values()),
                name=name,
                replay="call",
                cache="cold-clean",  # or it would write back what the flush wrote
            )
            row["totals"][name] = {short: counted[metric] for short, metric in METRICS.items()}
    except convtime.CountersUnavailable as error:
        row["reason"] = str(error)
    return row


def measure_activation(
    function: str, direction: str, dtype: str, device: torch.device
) -> results.Row:
    import torch
    from torch.nn import functional as F

    from convtime.ops import tutorial

    x = torch.randn(ELEMENTS, device=device, dtype=getattr(torch, DTYPES[dtype])).mul_(3)
    grad = torch.randn_like(x) if direction == "gradient" else None

    def pytorchs(x: torch.Tensor, grad: torch.Tensor | None) -> torch.Tensor:
        approximate = "tanh" if function == "gelu_tanh" else "none"
        if grad is None:
            return F.relu(x) if function == "relu" else F.gelu(x, approximate=approximate)
        if function == "relu":
            gradient: torch.Tensor = torch.ops.aten.threshold_backward(grad, x, 0)
        else:
            gradient = torch.ops.aten.gelu_backward(grad, x, approximate=approximate)
        return gradient

    calls: dict[str, Call] = {
        f"{step}/{build}": functools.partial(
            tutorial.activation, x, function, grad, step=step, build=build
        )
        for step, build in itertools.product(tutorial.ACTIVATION_STEPS, tutorial.ACTIVATION_BUILDS)
    }
    calls["pytorch"] = functools.partial(pytorchs, x, grad)
    exact = pytorchs(x.double(), None if grad is None else grad.double())
    errors = {
        name: float(((_tensor(call()).double() - exact).abs() / exact.abs().clamp(min=1)).max())
        for name, call in calls.items()
    }
    tensors = 2 if grad is None else 3  # read and written
    copied = torch.randn(tensors * ELEMENTS // 2, device=device, dtype=x.dtype)
    return {
        "subject": "activation",
        "function": function,
        "direction": direction,
        "dtype": dtype,
        "bytes": tensors * x.nbytes,
        "seconds": medians({"copy": functools.partial(torch.relu, copied), **calls}),
        "errors": errors,
    }


def measure_convolution(label: str, device: torch.device) -> results.Row:
    import torch
    from torch.nn import functional as F

    from convtime.conv.flags import Flags

    batch, channels, outputs, size = CONVOLUTIONS[label]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, channels, size, size, generator=generator)
    w = torch.randn(outputs, channels, 3, 3, generator=generator) / (9 * channels) ** 0.5
    exact = F.conv2d(x.to(device).double(), w.to(device).double(), padding=1)
    scale = exact.square().mean().sqrt()

    def convolve(x: torch.Tensor, w: torch.Tensor, allow_tf32: bool) -> torch.Tensor:
        with Flags(benchmark=True, allow_tf32=allow_tf32).applied():
            return F.conv2d(x, w, padding=1)

    calls: dict[str, Call] = {}
    for precision, name in PRECISIONS.items():
        ours, weight = (
            tensor.to(device, getattr(torch, name)).contiguous(memory_format=torch.channels_last)
            for tensor in (x, w)
        )
        calls[precision] = functools.partial(convolve, ours, weight, precision == "tf32")
    differences = {name: _tensor(call()).double() - exact for name, call in calls.items()}
    return {
        "subject": "convolution",
        "label": label,
        "flops": 2 * exact.numel() * 9 * channels,
        "seconds": medians(calls),
        "errors": {
            name: float(difference.square().mean().sqrt() / scale)
            for name, difference in differences.items()
        },
        "largest_errors": {
            name: float(difference.abs().max() / scale) for name, difference in differences.items()
        },
    }


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    from convtime.ops import tutorial

    cases: dict[str, running.Measure] = {}
    for subject, measure in (("pool", measure_pool), ("counters", measure_counters)):
        for case in itertools.product(DTYPES, LAYOUTS):
            cases[" ".join((subject, *case))] = functools.partial(measure, *case, device)
    for function, direction, dtype in itertools.product(tutorial.ACTIVATIONS, DIRECTIONS, DTYPES):
        cases[f"{function} {direction} {dtype}"] = functools.partial(
            measure_activation, function, direction, dtype, device
        )
    for label in CONVOLUTIONS:
        cases[f"convolution {label}"] = functools.partial(measure_convolution, label, device)
    return cases


def tell(row: results.Row) -> str:
    told: Mapping[str, Any] = row.get("seconds", {})
    times = ", ".join(f"{name} {1e6 * seconds:.2f} µs" for name, seconds in told.items())
    return times or row["reason"] or f"counted {', '.join(row['totals'])}"


if __name__ == "__main__":
    running.run_on_gpu("kernel_steps", __doc__, summarise, make_cases, tell=tell)
