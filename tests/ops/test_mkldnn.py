"""Convolutions of tensors in oneDNN's layout (Tensor.to_mkldnn), compared with torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from convtime import ops
from tests.helpers.op_calls import OPS, small_tensors

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)

Function = Callable[..., torch.Tensor]


def both(op: str) -> tuple[Function, Function]:
    """convtime's and PyTorch's."""
    return getattr(ops, op), getattr(F, op)


@pytest.mark.parametrize("op", OPS)
def test_outputs_are_pytorchs_to_the_bit(op: str) -> None:
    x, w, b = small_tensors(op).values()
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x.to_mkldnn(), weight, bias), options)
        for weight in (w, w.to_mkldnn())
        for bias in (b, b.to_mkldnn(), None)
        for options in ({}, {"padding": 1}, {"stride": [2], "dilation": 2})
    ]
    word = {"stride": 2, "output_padding": 1} if "transpose" in op else {"padding": "same"}
    calls += [
        ((x.to_mkldnn(), w[:, :2]), {"groups": 2}),
        ((x.to_mkldnn(), w, b), word),
        ((torch.empty(0, *x.shape[1:], layout=x.to_mkldnn().layout), w, b), {}),
    ]
    for arguments, options in calls:
        actual, expected = (function(*arguments, **options) for function in both(op))
        assert actual.is_mkldnn
        assert torch.equal(actual.to_dense(), expected.to_dense())


CALLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "a dense input, a weight in mkldnn": lambda x, w, b: (x, w.to_mkldnn(), b),
    "unbatched": lambda x, w, b: (x[0].to_mkldnn(), w, b),
    "channels": lambda x, w, b: (x[:, :3].to_mkldnn(), w, b),
    "size of the bias": lambda x, w, b: (x.to_mkldnn(), w, b[:3]),
    "a mix of dtypes": lambda x, w, b: (x.to_mkldnn(), w.double(), b),
    "dense bfloat16": lambda x, w, b: (x.bfloat16().to_mkldnn(), w.bfloat16(), b.bfloat16()),
    "float16": lambda x, w, b: (x.half().to_mkldnn(), w.half().to_mkldnn()),
    "padding": lambda x, w, b: (x.to_mkldnn(), w, b, 1, -1),
    "uneven padding": lambda x, w, b: (x.to_mkldnn(), w[..., :2], b, 1, "same"),
    "too many strides": lambda x, w, b: (x.to_mkldnn(), w, b, (1, 1, 1, 1)),
}


@pytest.mark.filterwarnings("ignore:.*padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("op", OPS)
def test_calls_are_accepted_or_refused_as_by_torch(op: str) -> None:
    def outcome(function: Function, call: Callable[..., tuple[Any, ...]]) -> Any:
        try:
            return function(*call(*small_tensors(op).values())).to_dense()
        except (RuntimeError, TypeError) as error:
            return type(error)

    for case, call in CALLS.items():
        ours, theirs = (outcome(function, call) for function in both(op))
        assert ours is theirs or torch.equal(ours, theirs), case
    x, w, b = small_tensors(op).values()
    for function in both(op):
        with torch.autocast("cpu"), pytest.raises(NotImplementedError):
            function(x.to_mkldnn(), w, b)
    with pytest.raises(RuntimeError, match="names cuDNN's engine 5, but PyTorch computes this"):
        getattr(ops, op)(x.to_mkldnn(), w, b, policy="eng5")


@pytest.mark.parametrize("weight", ["dense", "mkldnn"])
@pytest.mark.parametrize("op", OPS)
def test_gradients_are_pytorchs_to_the_bit(op: str, weight: str) -> None:
    def gradients(function: Function, needed: tuple[int, ...]) -> Any:
        x, w, b = leaves = [
            tensor.requires_grad_(bool(wanted))
            for tensor, wanted in zip(small_tensors(op).values(), needed, strict=True)
        ]
        try:
            y = function(x.to_mkldnn(), w.to_mkldnn() if weight == "mkldnn" else w, b, padding=1)
            y.to_dense().square().sum().backward()
        except RuntimeError as error:  # where a gradient needs a dense weight
            return str(error)
        return [leaf.grad for leaf in leaves]

    for needed in ((1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        ours, theirs = (gradients(function, needed) for function in both(op))
        if isinstance(theirs, str):
            assert ours == theirs
            continue
        for mine, pytorchs in zip(ours, theirs, strict=True):
            assert mine is pytorchs is None or torch.equal(mine, pytorchs)
