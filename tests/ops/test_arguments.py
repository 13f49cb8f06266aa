"""Arguments of convolutions: accepted and refused as torch.nn.functional does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from convtime import ops
from convtime.ops import arguments
from tests.helpers.op_calls import OPS, small_tensors

SHARED = ("stride", "padding", "dilation")


class Index:
    def __index__(self) -> int:
        return 1


def numbers(rank: int) -> list[Any]:
    """Values for an argument with one number per spatial dimension."""
    ones = [1] * rank
    refused = [
        *(None, 1.0, 1j, "1", True, {1}, {1: 1}, object, (), -1, bytearray(ones), np.bool_(True)),
        *([True] * rank, [True, *ones[1:]], [np.bool_(True)] * rank, [1.0] * rank),
        *([*ones[1:], 1.5], [*ones[1:], None], ["1"] * rank, [ones], [1] * (rank + 1)),
        *([-1] * rank, np.ones(rank), np.float64(1), [np.float32(1)] * rank),
        *(torch.ones(rank + 1, dtype=torch.int64), torch.tensor(1.0), [torch.tensor(1.0)] * rank),
    ]
    accepted = [
        *(1, tuple(ones), torch.Size(ones), np.int64(1), torch.tensor(1), np.ones(rank, int)),
        [*ones, True][-rank:] if rank > 1 else 1,
        [np.int32(1)] * rank,
        *([torch.tensor(1)] * rank, [Index()] * rank),
    ]
    return refused + accepted


GROUPS: list[Any] = [
    *(None, 1.0, "1", True, np.bool_(True), [1], (1,), np.ones(1, int), np.float64(1), 1j),
    *(torch.ones(2, dtype=torch.int64), torch.tensor(1.0), torch.tensor(1)),
    *(0, -1, 3, np.int64(1), Index()),
]
NOT_TENSORS: list[Any] = [1, "x", [1.0], (), np.ones(4), torch.nn.Parameter, None]


def outcome(function: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """The output, or the class of the error."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error)


def check(op: str, case: object, *args: Any, **kwargs: Any) -> None:
    theirs = outcome(getattr(F, op), *args, **kwargs)
    ours = outcome(getattr(ops, op), *args, **kwargs)
    if isinstance(theirs, type):
        assert ours is theirs, case
    else:
        assert isinstance(ours, torch.Tensor), (case, ours)
        assert ours.device == theirs.device, case
        assert ours.shape == theirs.shape, case
        assert ours.is_meta or torch.equal(ours, theirs), case


@pytest.mark.parametrize("op", OPS)
def test_numbers_and_words_are_accepted_or_refused_as_by_torch(op: str) -> None:
    for name in (*SHARED, "output_padding") if "transpose" in op else SHARED:
        for value in numbers(int(op[-2])):
            check(op, (name, value), **small_tensors(op, 5), **{name: value})
    for padding in ("same", "valid", "full", ""):
        for stride in (1, 2):
            check(op, (padding, stride), **small_tensors(op, 5), padding=padding, stride=stride)
    for groups in GROUPS:
        check(op, ("groups", groups), **small_tensors(op, 5), groups=groups)


@pytest.mark.parametrize("op", OPS)
def test_objects_other_than_tensors_are_refused_as_by_torch(op: str) -> None:
    for name in ("input", "weight", "bias"):
        for value in NOT_TENSORS:
            check(op, (name, value), **{**small_tensors(op, 5), name: value})


DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    - {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4},
    key=str,
)


@pytest.mark.filterwarnings("ignore:.*Complex.*experimental:UserWarning")
@pytest.mark.parametrize("op", OPS)
def test_dtypes_that_torch_refuses_are_refused_alike(op: str) -> None:
    for dtype in DTYPES:
        has_gradients = dtype.is_floating_point or dtype.is_complex
        for grad in (False, True) if has_gradients else (False,):
            for options in ({}, {"dilation": 2}, {"groups": 2}):
                x, w, b = (
                    torch.empty(tensor.shape, dtype=dtype).view(torch.uint8).zero_().view(dtype)
                    for tensor in small_tensors(op, 5).values()
                )
                w = w[:, : 4 // options.get("groups", 1)]
                leaves = [tensor.detach().requires_grad_(grad) for tensor in (x, w, b)]
                theirs = outcome(getattr(F, op), *leaves, **options)
                ours = outcome(getattr(ops, op), *leaves, **options)
                if isinstance(theirs, type):
                    assert ours is theirs, dtype
                elif dtype in arguments.DTYPES:
                    assert torch.equal(ours, theirs), dtype
                else:  # integers and complex numbers, which torch computes in part
                    assert ours is NotImplementedError, dtype
    x, w, _ = (tensor.int() for tensor in small_tensors(op, 5).values())
    with pytest.raises(NotImplementedError, match="the dtype must be Half, BFloat16, Float or"):
        getattr(ops, f"{op}_weight")(x, w.shape, x)
    with FakeTensorMode() as mode, pytest.raises(NotImplementedError, match="dtype must be in"):
        getattr(ops, op)(mode.from_tensor(x), mode.from_tensor(w))


@pytest.mark.parametrize("op", OPS)
def test_gradients_and_epilogues_refuse_the_same_types(op: str) -> None:
    x, w, b = small_tensors(op, 5).values()
    grad = torch.ones_like(getattr(F, op)(x, w))
    calls = [
        (getattr(ops, op), (x, w, b)),
        (getattr(ops, f"{op}_input"), (x.shape, w, grad)),
        (getattr(ops, f"{op}_weight"), (x, w.shape, grad)),
    ]
    if "transpose" not in op:
        calls.append((getattr(ops, f"{op}_epilogue"), (x, w, b)))
    bad = {"stride": 1.5, "padding": None, "dilation": True, "groups": 1.0, "policy": 1}
    for function, args in calls:
        function(*args)
        for name, value in bad.items():
            with pytest.raises(TypeError, match=f"{name} must be"):
                function(*args, **{name: value})


def test_sizes_for_gradients_are_whole_numbers() -> None:
    x, w, _ = small_tensors("conv2d", 5).values()
    sizes: list[Any] = [3, None, "abcd", (2, 4, 5.0, 5), [2, 4, None, 5]]
    for size in sizes:
        with pytest.raises(TypeError, match="input_size must be a sequence of whole numbers, got"):
            ops.conv2d_input(size, w, x)
        with pytest.raises(TypeError, match="weight_size must be a sequence of whole numbers, got"):
            ops.conv2d_weight(x, size, x)


def test_numbers_are_of_64_bits() -> None:
    for name in (*SHARED, "groups"):
        call: dict[str, Any] = {**small_tensors("conv2d", 5), name: 2**63}
        with pytest.raises(RuntimeError, match=f"conv2d: {name} must fit in 64 bits, got {2**63}"):
            ops.conv2d(**call)
        call[name] = 2**63 - 1  # is refused for another reason, with the epilogue's own checks, too
        for function in (ops.conv2d, ops.conv2d_epilogue):
            with pytest.raises(RuntimeError, match="must|larger|multiple"):
                function(**call)


@pytest.mark.parametrize("op", OPS)
def test_sparse_and_onednn_layouts_are_refused(op: str) -> None:
    x, w, b = small_tensors(op).values()
    for change in (torch.Tensor.to_sparse, torch.Tensor.to_mkldnn):
        for tensors in ((change(x), w, b), (x, change(w), b)):
            with pytest.raises(RuntimeError, match=f"{op}: input, weight and bias must have the l"):
                getattr(ops, op)(*tensors)
