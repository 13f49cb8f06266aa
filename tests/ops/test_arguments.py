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
from tests.helpers.op_calls import OPS

SHARED = ("stride", "padding", "dilation")


class Index:
    def __index__(self) -> int:
        return 1


class Int(int):
    pass


def numbers(rank: int) -> list[Any]:
    """Values for an argument with one number per spatial dimension."""
    ones = [1] * rank
    refused = [
        *(None, 1.0, 1j, "1", True, {1}, {1: 1}, object, (), -1),
        bytearray(ones),
        [True] * rank,
        [True, *ones[1:]],
        np.bool_(True),
        [np.bool_(True)] * rank,
        [1.0] * rank,
        [*ones[1:], 1.5],
        [*ones[1:], None],
        ["1"] * rank,
        [ones],
        np.ones(rank),
        np.float64(1),
        [np.float32(1)] * rank,
        torch.ones(rank + 1, dtype=torch.int64),
        torch.tensor(1.0),
        [torch.tensor(1.0)] * rank,
        [1] * (rank + 1),
        [-1] * rank,
    ]
    accepted = [
        *(1, tuple(ones), torch.Size(ones), Int(1), np.int64(1), torch.tensor(1)),
        [*ones, True][-rank:] if rank > 1 else 1,
        np.ones(rank, int),
        [np.int32(1)] * rank,
        [torch.tensor(1)] * rank,
        [Index()] * rank,
    ]
    return refused + accepted


GROUPS: list[Any] = [
    *(None, 1.0, "1", True, np.bool_(True), [1], (1,), np.ones(1, int), np.float64(1), 1j),
    torch.ones(2, dtype=torch.int64),
    torch.tensor(1.0),
    *(0, -1, 3, np.int64(1), torch.tensor(1), Index(), Int(1)),
]
NOT_TENSORS: list[Any] = [1, "x", [1.0], (), np.ones(4), torch.nn.Parameter, None]


def tensors(op: str) -> dict[str, torch.Tensor]:
    rank = int(op[-2])
    generator = torch.Generator().manual_seed(0)
    shapes = {"input": (2, 4, *[5] * rank), "weight": (4, 4, *[3] * rank), "bias": (4,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


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
            check(op, (name, value), **tensors(op), **{name: value})
    for padding in ("same", "valid", "full", ""):
        for stride in (1, 2):
            check(op, (padding, stride), **tensors(op), padding=padding, stride=stride)
    for groups in GROUPS:
        check(op, ("groups", groups), **tensors(op), groups=groups)


@pytest.mark.parametrize("op", OPS)
def test_objects_other_than_tensors_are_refused_as_by_torch(op: str) -> None:
    for name in ("input", "weight", "bias"):
        for value in NOT_TENSORS:
            check(op, (name, value), **{**tensors(op), name: value})


CALLS: dict[str, Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "no arguments": lambda x, w, b: ((), {}),
    "no weight": lambda x, w, b: ((x,), {}),
    "an unknown keyword": lambda x, w, b: ((x, w, b), {"strides": 1}),
    "out": lambda x, w, b: ((x, w, b), {"out": x}),
    "twice": lambda x, w, b: ((x, w, b), {"weight": w}),
    "too many": lambda x, w, b: ((x, w, b, 1, 0, 0, 1, 1, 1, 1), {}),
    "unbatched": lambda x, w, b: ((x[0], w, b), {}),
    "empty batch": lambda x, w, b: ((x[:0], w, b), {}),
    "a number for the input": lambda x, w, b: ((x.flatten()[0], w, b), {}),
    "too many dimensions": lambda x, w, b: ((x[None], w, b), {}),
    "dimensions of the weight": lambda x, w, b: ((x, w[0], b), {}),
    "dimensions of the bias": lambda x, w, b: ((x, w, b[None]), {}),
    "size of the bias": lambda x, w, b: ((x, w, b[:3]), {}),
    "no kernel": lambda x, w, b: ((x, w[..., :0], b), {}),
    "channels": lambda x, w, b: ((x[:, :3], w, b), {}),
    "a mix of dtypes": lambda x, w, b: ((x, w.double(), b), {}),
    "dtype of the bias": lambda x, w, b: ((x, w, b.half()), {}),
    "a mix of real and complex": lambda x, w, b: ((x.cfloat(), w, b), {}),
    "meta": lambda x, w, b: ((x.to("meta"), w.to("meta"), b.to("meta")), {}),
}


@pytest.mark.parametrize("op", OPS)
def test_calls_are_accepted_or_refused_as_by_torch(op: str) -> None:
    for case, call in CALLS.items():
        args, kwargs = call(*tensors(op).values())
        check(op, case, *args, **kwargs)


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
                    for tensor in tensors(op).values()
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


def test_a_dtype_that_is_not_supported_is_one_clear_error() -> None:
    for dtype in (torch.int32, torch.bool, torch.cfloat, torch.float8_e4m3fn):
        x, w, _ = (tensor.to(dtype) for tensor in tensors("conv2d").values())
        with pytest.raises(NotImplementedError, match="conv2d: the dtype must be Half, BFloat16"):
            ops.conv2d(x, w)
        with pytest.raises(NotImplementedError, match="the dtype must be Half, BFloat16, Float or"):
            ops.conv2d_weight(x, w.shape, torch.ones(2, 4, 3, 3, dtype=dtype))
        with FakeTensorMode() as mode, pytest.raises(NotImplementedError, match="dtype must be in"):
            ops.conv2d(mode.from_tensor(x), mode.from_tensor(w))


@pytest.mark.parametrize("op", OPS)
def test_gradients_and_epilogues_refuse_the_same_types(op: str) -> None:
    x, w, b = tensors(op).values()
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
    x, w, _ = tensors("conv2d").values()
    grad = torch.ones_like(F.conv2d(x, w))
    sizes: list[Any] = [3, None, "abcd", (2, 4, 5.0, 5), [2, 4, None, 5]]
    for size in sizes:
        with pytest.raises(TypeError, match="input_size must be a sequence of whole numbers, got"):
            ops.conv2d_input(size, w, grad)
        with pytest.raises(TypeError, match="weight_size must be a sequence of whole numbers, got"):
            ops.conv2d_weight(x, size, grad)


def test_numbers_are_of_64_bits() -> None:
    for name in (*SHARED, "groups"):
        call: dict[str, Any] = {**tensors("conv2d"), name: 2**63}
        with pytest.raises(RuntimeError, match=f"conv2d: {name} must fit in 64 bits, got {2**63}"):
            ops.conv2d(**call)
        call[name] = 2**63 - 1  # is refused for another reason, with the epilogue's own checks, too
        for function in (ops.conv2d, ops.conv2d_epilogue):
            with pytest.raises(RuntimeError, match="must|larger|multiple"):
                function(**call)
