"""Check and expand convolution arguments, and turn named padding into numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch.nn import functional as F

from convtime.core.dimensions import Numbers, per_dimension
from convtime.core.kinds import ConvolutionKind

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# The number of values that an argument takes, by the number of spatial dimensions.
_COUNTS = {1: "one whole number", 2: "one or two whole numbers", 3: "one or three whole numbers"}


class Geometry(NamedTuple):
    """The arguments of a convolution after the tensors, with a number for each spatial dimension.

    Attributes:
        surplus: zeros to append to the input (pad_end), if padding "same" must be uneven.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    surplus: tuple[int, ...]


def check_tensors(function: str, **tensors: object) -> None:
    """Raise RuntimeError if an argument is not a tensor."""
    for name, tensor in tensors.items():
        # torch.ops handles objects that override torch's functions, such as torch.fx proxies.
        if not (isinstance(tensor, torch.Tensor) or hasattr(tensor, "__torch_function__")):
            raise RuntimeError(f"{function}: {name} must be a tensor, got {type(tensor).__name__}")


def numbers(function: str, rank: int, name: str, value: Any) -> tuple[int, ...]:
    """Return the values of an argument; a single number is repeated for each spatial dimension.

    Raises:
        RuntimeError: the values are not whole numbers. The op itself checks their count.
    """
    values: tuple[Any, ...] = per_dimension(value, rank)
    if not all(isinstance(number, int | torch.SymInt | SupportsIndex) for number in values):
        raise RuntimeError(f"{function}: {name} must be {_COUNTS[rank]}, got {value!r}")
    return values


def geometry(
    function: str,
    kind: ConvolutionKind,
    weight_size: Sequence[int],
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
    output_padding: Numbers = 0,
) -> Geometry:
    """Expand the arguments to a number for each spatial dimension.

    Raises:
        RuntimeError: the values are not whole numbers, or the padding's name is not supported.
    """
    steps = numbers(function, kind.rank, "stride", stride)
    gaps = numbers(function, kind.rank, "dilation", dilation)
    surplus = (0,) * kind.rank
    if isinstance(padding, str) and not kind.transposed:
        pads, surplus = resolve_padding(function, kind.rank, weight_size, steps, padding, gaps)
    else:
        pads = numbers(function, kind.rank, "padding", padding)
    extra = numbers(function, kind.rank, "output_padding", output_padding)
    return Geometry(steps, pads, gaps, extra, groups, surplus)


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
