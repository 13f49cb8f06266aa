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

OPS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
SHARED = ("stride", "padding", "dilation")


class Index:
    def __index__(self) -> int:
        return 1


class Int(int):
    pass


def numbers(rank: int) -> dict[str, Any]:
    """Values for an argument with one number per spatial dimension."""
    ones = [1] * rank
    return {
        "None": None,
        "float": 1.0,
        "complex": 1j,
        "str": "1",
        "bytearray": bytearray(ones),
        "bool": True,
        "bools": [True] * rank,
        "bool first": [True, *ones[1:]],
        "bool last": [*ones, True][-rank:] if rank > 1 else 1,
        "numpy bool": np.bool_(True),
        "numpy bools": [np.bool_(True)] * rank,
        "floats": [1.0] * rank,
        "float last": [*ones[1:], 1.5],
        "None last": [*ones[1:], None],
        "strings": ["1"] * rank,
        "nested": [ones],
        "set": {1},
        "dict": {1: 1},
        "class": object,
        "array": np.ones(rank, int),
        "array of floats": np.ones(rank),
        "numpy float": np.float64(1),
        "numpy floats": [np.float32(1)] * rank,
        "tensor": torch.ones(rank + 1, dtype=torch.int64),
        "tensor of a float": torch.tensor(1.0),
        "tensors of floats": [torch.tensor(1.0)] * rank,
        "no numbers": (),
        "too many": [1] * (rank + 1),
        "negative": -1,
        "negatives": [-1] * rank,
        # Accepted
        "int": 1,
        "tuple": tuple(ones),
        "Size": torch.Size(ones),
        "subclass of int": Int(1),
        "numpy int": np.int64(1),
        "numpy ints": [np.int32(1)] * rank,
        "tensor of an int": torch.tensor(1),
        "tensors of ints": [torch.tensor(1)] * rank,
        "objects with an index": [Index()] * rank,
    }


GROUPS: dict[str, Any] = {
    "None": None,
    "float": 1.0,
    "str": "1",
    "bool": True,
    "numpy bool": np.bool_(True),
    "list": [1],
    "tuple": (1,),
    "array": np.ones(1, int),
    "numpy float": np.float64(1),
    "tensor": torch.ones(2, dtype=torch.int64),
    "tensor of a float": torch.tensor(1.0),
    "complex": 1j,
    "zero": 0,
    "negative": -1,
    "not a divisor": 3,
    "numpy int": np.int64(1),
    "tensor of an int": torch.tensor(1),
    "index": Index(),
    "subclass of int": Int(1),
}
NOT_TENSORS: dict[str, Any] = {
    "int": 1,
    "str": "x",
    "list": [1.0],
    "tuple": (),
    "array": np.ones(4),
    "class": torch.nn.Parameter,
}


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


def check(op: str, *args: Any, **kwargs: Any) -> None:
    theirs = outcome(getattr(F, op), *args, **kwargs)
    ours = outcome(getattr(ops, op), *args, **kwargs)
    if isinstance(theirs, type):
        assert ours is theirs
    else:
        assert isinstance(ours, torch.Tensor), ours
        assert ours.device == theirs.device
        assert ours.shape == theirs.shape
        assert ours.is_meta or torch.equal(ours, theirs)


def names(op: str) -> tuple[str, ...]:
    return (*SHARED, "output_padding") if "transpose" in op else SHARED


@pytest.mark.parametrize("case", numbers(1))
@pytest.mark.parametrize(("op", "name"), [(op, name) for op in OPS for name in names(op)])
def test_numbers_are_accepted_or_refused_as_by_torch(op: str, name: str, case: str) -> None:
    check(op, **tensors(op), **{name: numbers(int(op[-2]))[case]})


@pytest.mark.parametrize("padding", ["same", "valid", "full", ""])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("op", OPS)
def test_padding_by_name_is_accepted_or_refused_as_by_torch(
    op: str, stride: int, padding: str
) -> None:
    check(op, **tensors(op), padding=padding, stride=stride)


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("op", OPS)
def test_groups_are_accepted_or_refused_as_by_torch(op: str, case: str) -> None:
    check(op, **tensors(op), groups=GROUPS[case])


@pytest.mark.parametrize("case", [*NOT_TENSORS, "None"])
@pytest.mark.parametrize("name", ["input", "weight", "bias"])
@pytest.mark.parametrize("op", OPS)
def test_objects_other_than_tensors_are_refused_as_by_torch(op: str, name: str, case: str) -> None:
    check(op, **{**tensors(op), name: NOT_TENSORS.get(case)})


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


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("op", OPS)
def test_calls_are_accepted_or_refused_as_by_torch(op: str, case: str) -> None:
    args, kwargs = CALLS[case](*tensors(op).values())
    check(op, *args, **kwargs)


DTYPES = sorted(
    (
        dtype
        for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
        if not str(dtype).startswith(("torch.q"))
    ),
    key=str,
)


@pytest.mark.filterwarnings("ignore:.*Complex.*experimental:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_dtypes_that_torch_refuses_are_refused_alike(op: str, dtype: torch.dtype) -> None:
    for grad in (False, True) if dtype.is_floating_point or dtype.is_complex else (False,):
        for options in ({}, {"dilation": 2}, {"groups": 2}):
            x, w, b = (
                torch.empty(tensor.shape, dtype=dtype).view(torch.uint8).zero_().view(dtype)
                for tensor in tensors(op).values()
            )
            w = w[:, : 4 // options.get("groups", 1)]
            arguments = [tensor.detach().requires_grad_(grad) for tensor in (x, w, b)]
            theirs = outcome(getattr(F, op), *arguments, **options)
            ours = outcome(getattr(ops, op), *arguments, **options)
            if isinstance(theirs, type):
                assert ours is theirs
            elif dtype in ops.arguments.DTYPES:
                assert torch.equal(ours, theirs)
            else:  # integers and complex numbers, which torch computes in part
                assert ours is NotImplementedError


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.cfloat, torch.float8_e4m3fn])
def test_a_dtype_that_is_not_supported_is_one_clear_error(dtype: torch.dtype) -> None:
    x, w, _ = (tensor.to(dtype) for tensor in tensors("conv2d").values())
    with pytest.raises(NotImplementedError, match="conv2d: the dtype must be Half, BFloat16, Fl"):
        ops.conv2d(x, w)
    with pytest.raises(NotImplementedError, match="the dtype must be Half, BFloat16, Float or"):
        ops.conv2d_weight(x, w.shape, torch.ones(2, 4, 3, 3, dtype=dtype))
    with FakeTensorMode() as mode, pytest.raises(NotImplementedError, match="dtype must be in"):
        ops.conv2d(mode.from_tensor(x), mode.from_tensor(w))


@pytest.mark.parametrize(
    "change",
    [{"stride": 1.5}, {"padding": None}, {"dilation": True}, {"groups": 1.0}, {"policy": 1}],
)
@pytest.mark.parametrize("op", OPS)
def test_gradients_and_epilogues_refuse_the_same_types(op: str, change: dict[str, Any]) -> None:
    x, w, b = tensors(op).values()
    grad = torch.ones_like(getattr(F, op)(x, w))
    calls = [
        (getattr(ops, op), (x, w, b)),
        (getattr(ops, f"{op}_input"), (x.shape, w, grad)),
        (getattr(ops, f"{op}_weight"), (x, w.shape, grad)),
    ]
    if "transpose" not in op:
        calls.append((getattr(ops, f"{op}_epilogue"), (x, w, b)))
    for function, arguments in calls:
        function(*arguments)
        with pytest.raises(TypeError, match=f"{next(iter(change))} must be"):
            function(*arguments, **change)


@pytest.mark.parametrize("size", [3, None, "abcd", (2, 4, 5.0, 5), [2, 4, None, 5]])
def test_sizes_for_gradients_are_whole_numbers(size: Any) -> None:
    x, w, _ = tensors("conv2d").values()
    grad = torch.ones_like(F.conv2d(x, w))
    with pytest.raises(TypeError, match="input_size must be a sequence of whole numbers, got"):
        ops.conv2d_input(size, w, grad)
    with pytest.raises(TypeError, match="weight_size must be a sequence of whole numbers, got"):
        ops.conv2d_weight(x, size, grad)


@pytest.mark.parametrize("name", [*SHARED, "groups"])
def test_numbers_beyond_64_bits_are_one_clear_error(name: str) -> None:
    arguments: dict[str, Any] = {**tensors("conv2d"), name: 2**63}
    with pytest.raises(RuntimeError, match=f"conv2d: {name} must fit in 64 bits, got {2**63}"):
        ops.conv2d(**arguments)
