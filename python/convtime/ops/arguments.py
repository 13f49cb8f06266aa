"""Arguments of convolutions: checked, expanded, and padding in words turned into numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch
from torch.nn import functional as F

from convtime.core.dimensions import Numbers, per_dimension
from convtime.core.kinds import ConvolutionKind

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# The numbers that an argument takes, by the number of spatial dimensions.
_COUNTS = {1: "one whole number", 2: "one or two whole numbers", 3: "one or three whole numbers"}


def check_tensors(function: str, **tensors: object) -> None:
    """Raises RuntimeError for an argument that is no tensor."""
    for name, tensor in tensors.items():
        # What overrides torch's functions, such as torch.fx's proxies, is for torch.ops to handle.
        if not (isinstance(tensor, torch.Tensor) or hasattr(tensor, "__torch_function__")):
            raise RuntimeError(f"{function}: {name} must be a tensor, got {type(tensor).__name__}")


def numbers(kind: ConvolutionKind, name: str, value: Numbers) -> tuple[int, ...]:
    """The numbers of an argument, one per spatial dimension where a single one was given.

    Raises:
        RuntimeError: for anything but whole numbers; how many there are is the op's to check.
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
    """The sizes of a tensor with a batch.

    Raises:
        RuntimeError: for another number of them.
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
    """The padding as numbers, and the surplus of :func:`resolve_padding`."""
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
    """Turns "same" and "valid" into numbers as ATen's conv2d.padding does.

    Where the padding has to be uneven, there is a surplus: zeros to put at the end of the input
    (pad_end).
    """
    none = (0,) * rank
    fits = len(weight_size) == rank + 2 and len(dilation) == rank
    if padding == "valid" or not fits:  # the op refuses what does not fit
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
    """The input with zeros at the end of its spatial dimensions, or itself where there are none."""
    if not any(surplus):
        return input
    # F.pad takes the last dimension first, and its start before its end.
    return F.pad(input, [zeros for end in reversed(surplus) for zeros in (0, end)])
