"""Families of calls of the convolution ops: tensors and arguments that PyTorch takes or refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from convtime import ops

OPS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)
LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced", "misaligned")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

# A call of each op, with a number of its own for each argument: input, weight, arguments.
REPRESENTATIVES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "conv1d": ((2, 8, 33), (16, 8, 5), {"stride": 2, "padding": 3, "dilation": 2}),
    "conv2d": ((2, 8, 17, 15), (16, 8, 3, 5), {"stride": (2, 3), "padding": (1, 2)}),
    "conv3d": ((2, 4, 7, 9, 11), (8, 4, 3, 3, 2), {"stride": (1, 2, 3), "padding": 1}),
    "conv_transpose1d": (
        (2, 8, 9),
        (8, 4, 5),
        {"stride": 3, "padding": 1, "output_padding": 2, "dilation": 2},
    ),
    "conv_transpose2d": (
        (2, 8, 5, 6),
        (8, 4, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "conv_transpose3d": (
        (2, 4, 3, 4, 5),
        (4, 6, 3, 3, 2),
        {"stride": (1, 2, 3), "padding": 1, "output_padding": (0, 1, 2)},
    ),
}


@dataclass(frozen=True)
class Problem:
    """A call of a convolution, and what it is derived by.

    Attributes:
        bias: its size, or None.
        dtypes: of the input and the weight.
        layouts: of the input, the weight and the output's gradient.
        needed: which gradients are asked for: of the input, the weight, the bias.
    """

    op: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    bias: int | None
    arguments: dict[str, Any]
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32)
    layouts: tuple[str, str, str] = ("contiguous",) * 3
    needed: tuple[bool, bool, bool] = (True,) * 3

    @property
    def functions(self) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
        """convtime's and PyTorch's."""
        return getattr(ops, self.op), getattr(F, self.op)

    def tensors(self, device: torch.device | str) -> list[torch.Tensor | None]:
        """Input, weight and bias."""
        bias = None if self.bias is None else (self.bias,)
        dtypes = (*self.dtypes, self.dtypes[0])
        each = zip((self.x, self.w, bias), dtypes, (*self.layouts[:2], ""), strict=True)
        return [
            None if shape is None else make_tensor(shape, dtype, layout, device)
            for shape, dtype, layout in each
        ]

    def leaves(self, device: torch.device | str) -> list[torch.Tensor]:
        """The tensors that there are, with gradients."""
        return [each.requires_grad_() for each in self.tensors(device) if each is not None]

    def is_taken(self) -> bool:
        """Whether PyTorch takes it and something comes of it."""
        # Tensors without memory are not checked as fully in torch 2.11.
        try:
            return self.functions[1](*self.tensors("cpu"), **self.arguments).numel() > 0
        except (RuntimeError, TypeError):
            return False


def representative(op: str, **changes: Any) -> Problem:
    x, w, arguments = REPRESENTATIVES[op]
    outputs = w[1] if "transpose" in op else w[0]
    return Problem(op, x, w, outputs, arguments, **changes)


def make_tensor(
    shape: Sequence[int], dtype: torch.dtype, layout: str, device: torch.device | str
) -> torch.Tensor:
    if str(device) == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    tensor = tensor.to(device, dtype)
    if layout == "channels_last" and len(shape) in FORMATS:
        return tensor.contiguous(memory_format=FORMATS[len(shape)])
    if layout == "transposed" and len(shape) > 1:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced":
        wide = tensor.new_zeros((*shape[:-1], 2 * shape[-1]))
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if layout == "misaligned":
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(shape)
    if layout == "expanded":
        return tensor.new_ones(()).expand(shape)
    return tensor


@st.composite
def problems(draw: st.DrawFn, op: str, refused: bool = False) -> Problem:
    """Calls that PyTorch takes, or, if asked for, some that it refuses, too."""
    spatial, transposed = int(op[-2]), "transpose" in op
    largest, largest_kernel = (9, 4) if spatial < 3 else (6, 3)

    def rarely(wrong: Any, right: Any) -> Any:
        """One value in about twelve is wrong, so that most calls are right in everything."""
        return draw(wrong) if refused and draw(st.integers(0, 11)) == 7 else draw(right)

    def numbers(low: int, high: int, too_low: int) -> Any:
        """One number or one for each dimension, now and then too low, or too many."""
        right = st.integers(low, high)
        wrong = st.one_of(
            st.just(too_low),
            st.tuples(*[right] * (spatial - 1), st.just(too_low)),
            st.tuples(*[right] * (spatial + 1)),
            st.just(()),
        )
        return rarely(wrong, st.one_of(right, st.tuples(*[right] * spatial), st.tuples(right)))

    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    # Of no channels, a transposed convolution would be a weight of none, which PyTorch refuses.
    channels = rarely(st.just(1 if transposed else 0), st.sampled_from([1, 2, 3, 4, 16]))
    outputs = draw(st.integers(1, 3))
    off = st.integers(-1, 1)
    x = (
        draw(st.sampled_from([1, 2, 3, 3, 0] if refused else [1, 2, 3])),
        max(0, channels * groups + rarely(off, st.just(0))),
        rarely(st.just(0), st.integers(1, largest)),
        *(draw(st.integers(1, largest)) for _ in range(spatial - 1)),
    )
    kernel = [draw(st.integers(1, largest_kernel)) for _ in range(spatial)]
    if transposed:
        w = (max(1, channels * groups + rarely(off, st.just(0))), outputs, *kernel)
    else:
        w = (max(1, outputs * groups + rarely(off, st.just(0))), channels, *kernel)
    dtype = draw(st.sampled_from(DTYPES))
    named = not transposed and draw(st.integers(0, 3)) == 0
    arguments = {
        "stride": 1 if named and not refused else numbers(1, 3, too_low=0),
        "padding": draw(st.sampled_from(["same", "valid"]))
        if named
        else numbers(0, draw(st.sampled_from([2, 3, 7])), too_low=-1),
        # Not 0, which PyTorch takes or refuses by what computes it, and convtime refuses.
        "dilation": numbers(1, 3, too_low=-1),
    }
    if transposed:
        arguments["output_padding"] = numbers(0, 2, too_low=-1)
    arguments = {
        name: value
        for name, value in arguments.items()
        if draw(st.booleans()) or (named and name == "padding")
    }
    bias = outputs * groups if transposed else w[0]
    problem = Problem(
        op=op,
        x=rarely(st.just(x[2:]), st.sampled_from([x, x, x, x[1:]])),
        w=rarely(st.just(w[1:]), st.just(w)),
        bias=rarely(st.just(bias + 1), st.sampled_from([None, bias])),
        arguments=arguments | {"groups": rarely(st.integers(-1, 0), st.just(groups))},
        # PyTorch does not compare dtypes where there is nothing to compute.
        dtypes=(dtype, dtype if 0 in x else rarely(st.sampled_from(DTYPES), st.just(dtype))),
        layouts=(
            draw(st.sampled_from(LAYOUTS)),
            draw(st.sampled_from(LAYOUTS)),
            draw(st.sampled_from([*LAYOUTS, "expanded"])),
        ),
        needed=draw(st.tuples(st.booleans(), st.booleans(), st.booleans())),
    )
    if not refused and not problem.is_taken():
        return Problem(op, (2, 4, *[9] * spatial), (4, 4, *[3] * spatial), 4, {"padding": 1})
    return problem


def kept_by(call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The output, and the tensors that are kept for its gradient."""
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, keep):
        return call(), kept


def few_values(
    shape: tuple[int, ...],
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    specials: bool = False,
    seed: int = 0,
) -> torch.Tensor:
    """A tensor with ties, and with NaN and infinities if asked for."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).mul(2).round().div(2)
    x = (with_specials(x, seed + 1) if specials else x).to(device, dtype)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def with_specials(x: torch.Tensor, seed: int) -> torch.Tensor:
    drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).to(x.device)
    x[drawn < 0.1] = math.nan
    x[(drawn > 0.1) & (drawn < 0.2)] = math.inf
    x[(drawn > 0.2) & (drawn < 0.5)] = -math.inf
    return x


def small_tensors(op: str, size: int = 6, per_group: int = 4) -> dict[str, torch.Tensor]:
    """Tensors that fit as they are, and do so in a transposed convolution, too."""
    rank = int(op[-2])
    generator = torch.Generator().manual_seed(0)
    shapes = {"input": (2, 4, *[size] * rank), "weight": (4, per_group, *[3] * rank), "bias": (4,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
