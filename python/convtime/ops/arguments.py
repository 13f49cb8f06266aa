"""Check and expand convolution arguments, and turn named padding into numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch
from torch.nn import functional as F

from convtime.core.dimensions import Numbers, per_dimension
from convtime.core.kinds import ConvolutionKind

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# The number of values that an argument takes, by the number of spatial dimensions.
_COUNTS = {1: "one whole number", 2: "one or two whole numbers", 3: "one or three whole numbers"}


def check_tensors(function: str, **tensors: object) -> None:
    """Raise RuntimeError if an argument is not a tensor."""
    for name, tensor in tensors.items():
        # torch.ops handles objects that override torch's functions, such as torch.fx proxies.
        if not (isinstance(tensor, torch.Tensor) or hasattr(tensor, "__torch_function__")):
            raise RuntimeError(f"{function}: {name} must be a tensor, got {type(tensor).__name__}")


def numbers(kind: ConvolutionKind, name: str, value: Numbers) -> tuple[int, ...]:
    """Return the values of an argument; a single number is repeated for each spatial dimension.

    Raises:
        RuntimeError: the values are not whole numbers. The op itself checks their count.
    """
    values: tuple[Any, ...] = per_dimension(value, kind.rank)
    for number in values:
        if not isinstance(number, int | torch.SymInt | SupportsIndex):
            raise RuntimeError(
                f"{kind.function}: {name} must be {_COUNTS[kind.rank]}, got {value!r}"
            )
    return values


def size_of(
    kind: ConvolutionKind, function: str, name: str, value: Sequence[int]
) -> tuple[int, ...]:
    """Return the sizes of a batched tensor.

    Raises:
        RuntimeError: the number of sizes is wrong.
    """
    size = tuple(value)
    if len(size) != kind.rank + 2:
        count = {1: "three", 2: "four", 3: "five"}[kind.rank]
        raise RuntimeError(f"{function}: {name} must be {count} numbers, got {size}")
    return size


def padding_and_surplus(
    kind: ConvolutionKind,
    function: str,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: Numbers | str,
    dilation: Sequence[int],
) -> tuple[Sequence[int], tuple[int, ...]]:
    """Return the padding as numbers, and the surplus from :func:`resolve_padding`."""
    if not isinstance(padding, str):
        return numbers(kind, "padding", padding), (0,) * kind.rank
    if kind.transposed:
        raise RuntimeError(f"{function}: padding must be {_COUNTS[kind.rank]}, got {padding!r}")
    return resolve_padding(function, kind.rank, weight_size, stride, padding, dilation)


def resolve_padding(
    function: str,
    rank: int,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: str,
    dilation: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Turn "same" and "valid" into numbers as ATen's conv2d.padding does.

    If the padding must be uneven, there is a surplus: zeros to append to the input (pad_end).
    """
    none = (0,) * rank
    fits = len(weight_size) == rank + 2 and len(dilation) == rank
    if padding == "valid" or not fits:  # the op rejects arguments that do not fit
        return none, none
    if padding != "same":
        raise RuntimeError(
            f"{function}: padding must be a number, 'same' or 'valid', got {padding!r}"
        )
    if any(step != 1 for step in stride):
        raise RuntimeError(f"{function}: padding 'same' needs a stride of 1, got {stride}")
    total = [gap * (size - 1) for gap, size in zip(dilation, weight_size[2:], strict=True)]
    return tuple(zeros // 2 for zeros in total), tuple(zeros % 2 for zeros in total)


def pad_end(input: torch.Tensor, surplus: Sequence[int]) -> torch.Tensor:
    """Append zeros to the input's spatial dimensions, if any are needed."""
    if not any(surplus):
        return input
    # F.pad takes the last dimension first, and its start before its end.
    return F.pad(input, [zeros for end in reversed(surplus) for zeros in (0, end)])
