"""PyTorch's operations that benchmarks time, by names that say what they work on."""

import functools
import re
from typing import Any

import torch
from torch.nn import functional as F

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_NAME = re.compile(r"(?P<kind>.+?) (?P<sizes>\d[\dx]*([KMG]i)?)(?P<details>( \w+)*)")
_UNITS = {"Ki": 10, "Mi": 20, "Gi": 30}
_TABLE = 50_000  # rows of what an embedding or an index_select chooses from

Operation = functools.partial[Any]  # with all of its arguments


def operation(name: str, device: torch.device) -> Operation:
    """The call of a name such as "relu 4Ki", "matmul 512 bf16" or "conv 32x64x56x56 fp16 nhwc".

    It works on random data: on zeros a matmul is 13 % faster. Sizes are those of the result or the
    input; a single one of a softmax or matmul is that of a square. Otherwise a matmul has rows,
    inner dimension and columns. A convolution is 3×3, with as many channels before as after it. The
    dtype is fp32 by default.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} must be an operation, its sizes, and a dtype and layout")
    units = re.findall(r"(\d+)([KMG]i)?", found["sizes"])
    sizes = [int(number) << _UNITS.get(unit, 0) for number, unit in units]
    details = found["details"].split()
    dtype = next((DTYPES[each] for each in details if each in DTYPES), torch.float32)
    is_last = "nhwc" in details or "channels_last" in details
    layout = torch.channels_last if is_last else torch.contiguous_format

    def rand(*shape: int) -> torch.Tensor:
        x = torch.randn(shape, device=device, dtype=dtype)
        return x.to(memory_format=layout) if len(shape) == 4 else x

    def index(below: int) -> torch.Tensor:
        return torch.randint(below, sizes[:1], device=device)

    match found["kind"]:
        case "relu" | "neg" | "exp" | "sum" | "sort" as kind:
            return Operation(getattr(torch, kind), rand(*sizes))
        case "add" | "mul" as kind:
            return Operation(getattr(torch, kind), rand(*sizes), rand(*sizes))
        case "gelu":
            return Operation(F.gelu, rand(*sizes))
        case "softmax":
            return Operation(torch.softmax, rand(*(sizes * 2)[:2]), 1)
        case "layer_norm":
            return Operation(F.layer_norm, rand(*sizes), sizes[1:])
        case "copy_":
            target = torch.empty(sizes, device=device, dtype=dtype)
            return Operation(target.copy_, torch.ones_like(target))
        case "matmul":
            rows, inner, columns = sizes * 3 if len(sizes) == 1 else sizes
            return Operation(torch.mm, rand(rows, inner), rand(inner, columns))
        case "linear":
            rows, inner, outer = sizes
            return Operation(F.linear, rand(rows, inner), rand(outer, inner), rand(outer))
        case "bmm":
            return Operation(torch.bmm, rand(*sizes), rand(*sizes))
        case "conv":
            x, weight = rand(*sizes), rand(sizes[1], sizes[1], 3, 3)
            return Operation(F.conv2d, x, weight, padding=1)
        case "conv backward":
            tensors = rand(*sizes), rand(*sizes), rand(sizes[1], sizes[1], 3, 3)
            steps = ([1, 1], [1, 1], [1, 1])
            more = (None, *steps, False, [0, 0], 1, [True, True, False])
            return Operation(torch.ops.aten.convolution_backward, *tensors, *more)
        case "linear+relu":
            return Operation(_linear_relu, rand(*sizes), rand(sizes[1], sizes[1]))
        case "mul+exp+add":
            return Operation(_mul_exp_add, rand(*sizes))
        case "cross_entropy":
            return Operation(F.cross_entropy, rand(*sizes), index(sizes[1]))
        case "embedding":
            return Operation(F.embedding, index(_TABLE), rand(_TABLE, sizes[1]))
        case "index_select":
            return Operation(torch.index_select, rand(_TABLE, sizes[1]), 0, index(_TABLE))
    raise ValueError(f"{name!r} must be of an operation that is listed above")


def _linear_relu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.linear(x, weight))


def _mul_exp_add(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).exp().add(1)
