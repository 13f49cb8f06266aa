"""Check and expand convolution arguments, and turn named padding into numbers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import NoneType
from typing import Any, NamedTuple, SupportsFloat

import torch
from torch.nn import functional as F

from convtime.core.checks import check_type
from convtime.core.kinds import ConvolutionKind, Numbers, per_dimension

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
    """Raise TypeError if an argument is not a tensor."""
    for name, tensor in tensors.items():
        if not _is_tensor(tensor):
            raise TypeError(f"{function}: {name} must be a tensor, got {type(tensor).__name__}")


def check_options(function: str, *, policy: object, **tensors: object) -> None:
    """Raise TypeError if an argument is neither None nor of its type: a tensor, or str (policy)."""
    for name, tensor in tensors.items():
        if tensor is not None and not _is_tensor(tensor):
            raise TypeError(
                f"{function}: {name} must be a tensor or None, got {type(tensor).__name__}"
            )
    check_type(f"{function}: policy", policy, (str, NoneType), "a str or None")


def _is_tensor(value: object) -> bool:
    # torch.ops handles objects whose class overrides torch's functions, such as torch.fx proxies.
    return isinstance(value, torch.Tensor) or hasattr(type(value), "__torch_function__")


def _is_whole(value: object) -> bool:
    """Return whether torch converts the value to an int without rounding it."""
    if isinstance(value, int | torch.SymInt):
        return True
    if isinstance(value, torch.Tensor):
        dtype = value.dtype
        is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        return is_integer and value.numel() == 1
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def numbers(function: str, rank: int, name: str, value: Any) -> tuple[int, ...]:
    """Return the values of an argument; a single number is repeated for each spatial dimension.

    Raises:
        TypeError: the values are not whole numbers. The op itself checks their count.
        RuntimeError: a value does not fit in 64 bits.
    """
    values: tuple[Any, ...] = (value,) if isinstance(value, str) else per_dimension(value, rank)
    # Like torch, which accepts [1, True], but not [True, 1].
    if not all(map(_is_whole, values)) or any(isinstance(first, bool) for first in values[:1]):
        raise TypeError(f"{function}: {name} must be {_COUNTS[rank]}, got {value!r}")
    _check_bits(function, name, *values)
    return values


def check_real(function: str, name: str, value: object) -> None:
    """Raise TypeError if an argument is not one real number."""
    is_array = isinstance(value, torch.Tensor) and value.numel() != 1
    if is_array or not isinstance(value, int | float | SupportsFloat):
        raise TypeError(f"{function}: {name} must be a real number, got {value!r}")


def check_sizes(function: str, rank: int, name: str, value: object) -> tuple[int, ...]:
    """Return the sizes of a batched tensor as a tuple, or raise an error if they are not of one."""
    if not isinstance(value, Sequence) or not all(map(_is_whole, value)):
        raise TypeError(f"{function}: {name} must be a sequence of whole numbers, got {value!r}")
    if len(value) != rank + 2:
        count = {1: "three", 2: "four", 3: "five"}[rank]
        raise RuntimeError(f"{function}: {name} must be {count} numbers, got {tuple(value)}")
    return tuple(value)


def _check_bits(function: str, name: str, *values: object) -> None:
    for value in values:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise RuntimeError(f"{function}: {name} must fit in 64 bits, got {value}")


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
        TypeError: the values are not whole numbers.
        RuntimeError: the padding's name is not supported, or a value does not fit in 64 bits.
    """
    if isinstance(groups, bool) or not _is_whole(groups):
        raise TypeError(f"{function}: groups must be a whole number, got {groups!r}")
    _check_bits(function, "groups", groups)
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
