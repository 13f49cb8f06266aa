"""Seeded random calls: the ops take what PyTorch's functions take, and compute the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from convtime import ops

DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)
OPS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced", "misaligned")


@dataclass(frozen=True)
class Problem:
    op: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    bias: int | None  # its size
    arguments: dict[str, Any]
    x_dtype: torch.dtype
    w_dtype: torch.dtype
    x_layout: str
    w_layout: str


def rarely(draw: st.DrawFn, wrong: Any, right: Any) -> Any:
    """One value in about twelve is wrong, so that most problems are right in everything."""
    return draw(wrong) if draw(st.integers(0, 11)) == 7 else draw(right)


def numbers(draw: st.DrawFn, spatial: int, low: int, high: int, too_low: int) -> Any:
    """One number or one for each dimension, now and then too low, or too many."""
    right = st.integers(low, high)
    each = st.tuples(*[right] * spatial)
    wrong = st.one_of(
        st.just(too_low),
        st.tuples(*[right] * (spatial - 1), st.just(too_low)),
        st.tuples(*[right] * (spatial + 1)),
        st.just(()),
    )
    return rarely(draw, wrong, st.one_of(right, each, st.tuples(right)))


@st.composite
def problems(draw: st.DrawFn, op: str) -> Problem:
    spatial, transposed = int(op[-2]), "transpose" in op
    largest, largest_kernel = (9, 4) if spatial < 3 else (6, 3)
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    # Of no channels, a transposed convolution would be a weight of none, which PyTorch refuses.
    channels = rarely(draw, st.just(1 if transposed else 0), st.integers(1, 4))
    outputs = draw(st.integers(1, 3))
    off = st.integers(-1, 1)
    x = (
        rarely(draw, st.just(0), st.integers(1, 3)),
        max(0, channels * groups + rarely(draw, off, st.just(0))),
        rarely(draw, st.just(0), st.integers(1, largest)),
        *(draw(st.integers(1, largest)) for _ in range(spatial - 1)),
    )
    kernel = [draw(st.integers(1, largest_kernel)) for _ in range(spatial)]
    if transposed:
        w = (max(1, channels * groups + rarely(draw, off, st.just(0))), outputs, *kernel)
    else:
        w = (max(1, outputs * groups + rarely(draw, off, st.just(0))), channels, *kernel)
    dtype = draw(st.sampled_from(DTYPES))
    arguments = {
        "stride": numbers(draw, spatial, 1, 3, too_low=0),
        "padding": draw(st.sampled_from(["same", "valid"]))
        if not transposed and draw(st.integers(0, 5)) == 0
        else numbers(draw, spatial, 0, 3, too_low=-1),
        # Not 0, which PyTorch takes or refuses by what computes it, and we refuse.
        "dilation": numbers(draw, spatial, 1, 3, too_low=-1),
        "groups": rarely(draw, st.integers(-1, 0), st.just(groups)),
    }
    if transposed:
        arguments["output_padding"] = numbers(draw, spatial, 0, 2, too_low=-1)
    bias = outputs * groups if transposed else w[0]
    return Problem(
        op=op,
        x=rarely(draw, st.just(x[2:]), st.sampled_from([x, x, x, x[1:]])),
        w=rarely(draw, st.just(w[1:]), st.just(w)),
        bias=rarely(draw, st.just(bias + 1), st.sampled_from([None, bias])),
        arguments={name: value for name, value in arguments.items() if draw(st.booleans())}
        | {"groups": arguments["groups"]},
        x_dtype=dtype,
        w_dtype=rarely(draw, st.sampled_from(DTYPES), st.just(dtype)),
        x_layout=draw(st.sampled_from(LAYOUTS)),
        w_layout=draw(st.sampled_from(LAYOUTS)),
    )


def make_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, layout: str, device: torch.device
) -> torch.Tensor:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    tensor = tensor.to(device, dtype)
    if layout == "channels_last" and len(shape) in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.contiguous(memory_format=formats[len(shape)])
    if layout == "transposed" and len(shape) > 1:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced":
        wide = tensor.new_zeros((*shape[:-1], 2 * shape[-1]))
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if layout == "misaligned":
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(shape)
    return tensor


def outcome(
    namespace: Any, problem: Problem, device: torch.device
) -> list[torch.Tensor] | Exception:
    """The output and the gradients, or what was raised."""
    x = make_tensor(problem.x, problem.x_dtype, problem.x_layout, device)
    w = make_tensor(problem.w, problem.w_dtype, problem.w_layout, device)
    b = None if problem.bias is None else torch.ones(problem.bias, device=device, dtype=x.dtype)
    leaves = [tensor.detach().requires_grad_() for tensor in (x, w, b) if tensor is not None]
    try:
        output = getattr(namespace, problem.op)(*leaves, **problem.arguments)
        if device.type == "cpu" and output.dtype in (torch.float16, torch.bfloat16):
            return [output]  # torch 2.11 writes out of bounds in some of these gradients
        return [output, *torch.autograd.grad(output, leaves, torch.ones_like(output))]
    except Exception as error:
        return error


@settings(
    max_examples=75 if torch.cuda.is_available() else 200,  # plans take long to build
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.parametrize("op", OPS)
@given(data=st.data())
def test_an_op_takes_and_computes_what_pytorchs_does(
    op: str, data: st.DataObject, device: torch.device
) -> None:
    problem = data.draw(problems(op))
    # PyTorch does not compare dtypes where there is nothing to compute.
    assume(problem.x_dtype == problem.w_dtype or 0 not in problem.x)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        expected = outcome(F, problem, device)
        actual = outcome(ops, problem, device)
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        assert isinstance(expected, Exception), f"PyTorch takes what convtime does not: {actual}"
        assert isinstance(actual, RuntimeError), f"PyTorch refuses with: {expected}"
        return
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("op", OPS)
def test_the_fuzzer_makes_both_kinds(op: str) -> None:
    seen = []

    @settings(max_examples=100, derandomize=True, database=None, deadline=None)
    @given(problem=problems(op))
    def run(problem: Problem) -> None:
        refused = isinstance(outcome(F, problem, torch.device("cpu")), Exception)
        seen.append("refused" if refused else "taken")

    run()
    assert min(seen.count("taken"), seen.count("refused")) > 20
