"""A batch norm that is folded into a convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from convtime.nn.folding import FoldedTensors, Folding, fold_norm


@settings(max_examples=40)
@given(
    rank=st.sampled_from([1, 2, 3]),
    channels=st.integers(1, 5),
    has_bias=st.booleans(),
    affine=st.booleans(),
    eps=st.floats(1e-5, 1),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_folded_tensors_are_the_convolution_and_its_norm(
    rank, channels, has_bias, affine, eps, dtype, seed
) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(channels, 2, *[3] * rank, dtype=dtype)
    bias = torch.randn(channels, dtype=dtype) if has_bias else None
    mean, scale, shift = torch.randn(3, channels)
    variance = torch.rand(channels) + 0.1
    given = (scale, shift) if affine else (None, None)
    product, offset = fold_norm(weight, bias, mean, variance, *given, eps)
    assert product.dtype == offset.dtype == dtype
    conv = getattr(F, f"conv{rank}d")
    x = torch.randn(2, 2, *[4] * rank, dtype=torch.float64)
    wide: Any = [None if each is None else each.double() for each in (bias, mean, variance, *given)]
    plain = conv(x, weight.double(), wide[0])
    expected = F.batch_norm(plain, wide[1], wide[2], wide[3], wide[4], eps=eps)
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    largest = expected.abs().max().item() + 1
    torch.testing.assert_close(
        conv(x, product.double(), offset.double()), expected, rtol=0, atol=tolerance * largest
    )


def test_only_constant_tensors_are_folded_once() -> None:
    norm = nn.BatchNorm2d(2).eval()
    weight = torch.randn(2, 2, 1, 1)
    inputs = [None, weight, norm.running_mean, norm.running_var]
    folding = [Folding((1, None, 2, 3, None, None), norm.eps)]
    cases: list[tuple[Callable[[object], bool], bool]] = [
        (lambda _: True, True),
        (lambda _: False, False),
        (lambda tensor: tensor is weight, False),
    ]
    for is_constant, kept in cases:
        of_inputs = FoldedTensors(is_constant).of(folding)
        assert (of_inputs(inputs)[0] is of_inputs(inputs)[0]) == kept
        other = [*inputs[:3], norm.running_var + 3]
        torch.testing.assert_close(of_inputs(other)[0], weight / 2, rtol=1e-4, atol=1e-4)
