"""Seeded random calls: ops.conv2d takes what F.conv2d takes, and computes the same bits."""

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
LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced", "misaligned")


@dataclass(frozen=True)
class Problem:
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


def numbers(draw: st.DrawFn, low: int, high: int, too_low: int) -> Any:
    """One number or two, now and then too low, or too many."""
    right = st.integers(low, high)
    wrong = st.one_of(
        st.just(too_low),
        st.tuples(right, st.just(too_low)),
        st.tuples(right, right, right),
        st.just(()),
    )
    return rarely(draw, wrong, st.one_of(right, st.tuples(right, right), st.tuples(right)))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    channels = rarely(draw, st.just(0), st.integers(1, 4))
    outputs = groups * draw(st.integers(1, 3))
    off = st.integers(-1, 1)
    x = (
        rarely(draw, st.just(0), st.integers(1, 3)),
        max(0, channels * groups + rarely(draw, off, st.just(0))),
        rarely(draw, st.just(0), st.integers(1, 9)),
        draw(st.integers(1, 9)),
    )
    w = (
        max(1, outputs + rarely(draw, off, st.just(0))),
        channels,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
    )
    dtype = draw(st.sampled_from(DTYPES))
    arguments = {
        "stride": numbers(draw, 1, 3, too_low=0),
        "padding": draw(st.sampled_from(["same", "valid"]))
        if draw(st.integers(0, 5)) == 0
        else numbers(draw, 0, 3, too_low=-1),
        # Not 0, which PyTorch takes or refuses by what computes it, and we refuse.
        "dilation": numbers(draw, 1, 3, too_low=-1),
        "groups": rarely(draw, st.integers(-1, 0), st.just(groups)),
    }
    return Problem(
        x=rarely(draw, st.just(x[2:]), st.sampled_from([x, x, x, x[1:]])),
        w=rarely(draw, st.just(w[1:]), st.just(w)),
        bias=rarely(draw, st.just(w[0] + 1), st.sampled_from([None, w[0]])),
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
    if layout == "channels_last" and len(shape) == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "transposed":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced":
        wide = tensor.new_zeros((*shape[:-1], 2 * shape[-1]))
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if layout == "misaligned":
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(shape)
    return tensor


def outcome(conv2d: Any, problem: Problem, device: torch.device) -> list[torch.Tensor] | Exception:
    """The output and the gradients, or what was raised."""
    x = make_tensor(problem.x, problem.x_dtype, problem.x_layout, device)
    w = make_tensor(problem.w, problem.w_dtype, problem.w_layout, device)
    b = None if problem.bias is None else torch.ones(problem.bias, device=device, dtype=x.dtype)
    leaves = [t.detach().requires_grad_() for t in (x, w, b) if t is not None]
    try:
        output = conv2d(*leaves, **problem.arguments)
        if device.type == "cpu" and output.dtype in (torch.float16, torch.bfloat16):
            return [output]  # torch 2.11 writes out of bounds in some of these gradients
        return [output, *torch.autograd.grad(output, leaves, torch.ones_like(output))]
    except Exception as error:
        return error


@settings(
    max_examples=150 if torch.cuda.is_available() else 500,  # plans take long to build
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(problem=problems())
def test_conv2d_takes_and_computes_what_pytorchs_does(
    problem: Problem, device: torch.device
) -> None:
    # PyTorch does not compare dtypes where there is nothing to compute.
    assume(problem.x_dtype == problem.w_dtype or 0 not in problem.x)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        expected = outcome(F.conv2d, problem, device)
        actual = outcome(ops.conv2d, problem, device)
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        assert isinstance(expected, Exception), f"F.conv2d takes what ops.conv2d does not: {actual}"
        assert isinstance(actual, RuntimeError), f"F.conv2d refuses with: {expected}"
        return
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("wanted", ["taken", "refused"])
def test_the_fuzzer_makes_both_kinds(wanted: str) -> None:
    seen = []

    @settings(max_examples=100, derandomize=True, database=None, deadline=None)
    @given(problem=problems())
    def run(problem: Problem) -> None:
        refused = isinstance(outcome(F.conv2d, problem, torch.device("cpu")), Exception)
        seen.append("refused" if refused else "taken")

    run()
    assert seen.count(wanted) > 20
