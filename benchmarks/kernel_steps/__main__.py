"""The rows, by subject."""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import results
import torch
from common.calls import compare_counted
from common.running import Call, Measure, run
from torch.nn import functional as F

import convtime
from convtime import ops
from convtime.conv.call import Flags

sys.path.append(str(Path(__file__).parents[2] / "examples" / "tutorial"))
import tutorial

SHAPE = (32, 64, 112, 112)
WINDOW = (3, 2, 1)  # kernel size, stride, padding
TensorCall = Callable[[], torch.Tensor]

ELEMENTS = 2**24
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
DIRECTIONS = ("forward", "gradient")
# Batch, channels before and after, height and width; 3×3 with a padding of 1, channels last.
CONVOLUTIONS = {"64 channels": (32, 64, 64, 56), "512 channels": (32, 512, 512, 14)}
PRECISIONS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
METRICS = {
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "instructions": "smsp__inst_executed.sum",
}


def make_cases(device: torch.device) -> dict[str, Measure]:
    cases: dict[str, Measure] = {}
    for subject, measure in (("pool", measure_pool), ("counters", measure_counters)):
        for case in itertools.product(DTYPES, LAYOUTS):
            cases[" ".join((subject, *case))] = functools.partial(measure, *case, device)
    for activation in itertools.product(tutorial.ACTIVATIONS, DIRECTIONS, DTYPES):
        cases[" ".join(activation)] = functools.partial(measure_activation, *activation, device)
    for label in CONVOLUTIONS:
        cases[f"convolution {label}"] = functools.partial(measure_convolution, label, device)
    return cases


def medians(calls: Mapping[str, Call], copied: torch.Tensor | None = None) -> dict[str, float]:
    copy = {} if copied is None else {"copy": functools.partial(torch.relu, copied)}
    # Each row checks results itself, by what it is about.
    compared = compare_counted({**copy, **calls}, 100, budget=20.0)
    return {name: one.median for name, one in compared.measurements.items()}


def pool_input(dtype: str, layout: str, device: torch.device) -> torch.Tensor:
    x = torch.randn(SHAPE, device=device, dtype=DTYPES[dtype])
    return x.contiguous(memory_format=LAYOUTS[layout])


def measure_pool(dtype: str, layout: str, device: torch.device) -> results.Row:
    x = pool_input(dtype, layout, device)
    expected = F.max_pool2d(F.relu(x), *WINDOW)
    moved = x.nbytes + expected.nbytes
    copied = torch.randn(moved // (2 * x.itemsize), device=device, dtype=x.dtype)
    variants = {
        f"{step}/{build}": (step, build)
        for step, build in itertools.product(tutorial.POOL_STEPS, tutorial.POOL_BUILDS)
    }
    pools: dict[str, TensorCall] = {
        name: functools.partial(tutorial.relu_max_pool2d, x, *WINDOW, step=step, build=build)
        for name, (step, build) in variants.items()
    }
    pools["convtime"] = functools.partial(ops.relu_max_pool2d, x, *WINDOW)
    pools["eager"] = lambda: F.max_pool2d(F.relu(x), *WINDOW)
    return {
        "subject": "pool",
        "dtype": dtype,
        "layout": layout,
        "bytes": moved,
        "differ": [name for name, call in pools.items() if not torch.equal(call(), expected)],
        "seconds": medians(pools, copied),
        "facts": {
            name: dataclasses.asdict(
                tutorial.relu_max_pool2d_facts(x, *WINDOW, step=step, build=build)
            )
            for name, (step, build) in variants.items()
        },
    }


def measure_counters(dtype: str, layout: str, device: torch.device) -> results.Row:
    x = pool_input(dtype, layout, device)
    pools: dict[str, TensorCall] = {
        step: functools.partial(tutorial.relu_max_pool2d, x, *WINDOW, step=step)
        for step in tutorial.POOL_STEPS
    }
    pools["convtime"] = functools.partial(ops.relu_max_pool2d, x, *WINDOW)
    totals: results.Row = {}
    reason = ""
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
            totals[name] = {short: counted[metric] for short, metric in METRICS.items()}
    except convtime.CountersUnavailable as error:
        reason = str(error)
    return {
        "subject": "counters", "dtype": dtype, "layout": layout, "totals": totals, "reason": reason
    }  # fmt: skip


def measure_activation(
    function: str, direction: str, dtype: str, device: torch.device
) -> results.Row:
    x = torch.randn(ELEMENTS, device=device, dtype=DTYPES[dtype]).mul_(3)
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

    calls: dict[str, TensorCall] = {
        f"{step}/{build}": functools.partial(
            tutorial.activation, x, function, grad, step=step, build=build
        )
        for step, build in itertools.product(tutorial.ACTIVATION_STEPS, tutorial.ACTIVATION_BUILDS)
    }
    calls["pytorch"] = functools.partial(pytorchs, x, grad)
    exact = pytorchs(x.double(), None if grad is None else grad.double())
    errors = {
        name: float(((call().double() - exact).abs() / exact.abs().clamp(min=1)).max())
        for name, call in calls.items()
    }
    tensors = 2 if grad is None else 3  # read and written
    return {
        "subject": "activation",
        "function": function,
        "direction": direction,
        "dtype": dtype,
        "bytes": tensors * x.nbytes,
        "seconds": medians(
            calls, torch.randn(tensors * ELEMENTS // 2, device=device, dtype=x.dtype)
        ),
        "errors": errors,
    }


def measure_convolution(label: str, device: torch.device) -> results.Row:
    batch, channels, outputs, size = CONVOLUTIONS[label]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, channels, size, size, generator=generator)
    w = torch.randn(outputs, channels, 3, 3, generator=generator) / (9 * channels) ** 0.5
    exact = F.conv2d(x.to(device).double(), w.to(device).double(), padding=1)
    scale = exact.square().mean().sqrt()

    def convolve(x: torch.Tensor, w: torch.Tensor, allow_tf32: bool) -> torch.Tensor:
        with Flags(benchmark=True, allow_tf32=allow_tf32).applied():
            return F.conv2d(x, w, padding=1)

    calls: dict[str, TensorCall] = {}
    for precision, dtype in PRECISIONS.items():
        ours, weight = (
            tensor.to(device, dtype).contiguous(memory_format=torch.channels_last)
            for tensor in (x, w)
        )
        calls[precision] = functools.partial(convolve, ours, weight, precision == "tf32")
    off = {name: call().double() - exact for name, call in calls.items()}
    return {
        "subject": "convolution",
        "label": label,
        "flops": 2 * exact.numel() * 9 * channels,
        "seconds": medians(calls),
        "errors": {name: float(each.square().mean().sqrt() / scale) for name, each in off.items()},
        "largest_errors": {name: float(each.abs().max() / scale) for name, each in off.items()},
    }


if __name__ == "__main__":
    run("kernel_steps", make_cases)
