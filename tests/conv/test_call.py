"""A call of a convolution as data, and the very same call made again from it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from convtime.conv.call import PASSES, ConvCall, ConvTensors, TensorLayout, same_bits
from convtime.conv.flags import Flags
from convtime.conv.problem import ConvProblem
from convtime.core import codec
from convtime.core.errors import InputError
from tests.helpers.convolutions import problems

CPU = torch.device("cpu")
CALL = ConvCall(
    ConvProblem(
        *(2, 4, (9, 11), 6, (3, 5)), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2,
        bias=True,
    ),
    dtype="float32",
    x=TensorLayout((2, 4, 9, 11), (396, 1, 44, 4), 4),
    w=TensorLayout((6, 2, 3, 5), (30, 15, 5, 1)),
)  # fmt: skip


def dense(*sizes: int) -> TensorLayout:
    return TensorLayout.of(torch.empty(sizes, device="meta"))


def call_of(problem: ConvProblem, dtype: str) -> ConvCall:
    return ConvCall(problem, dtype, dense(*problem.input_shape), dense(*problem.weight_shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_layout_is_made_again(device: torch.device, dtype: torch.dtype) -> None:
    plain = torch.zeros(4, 3, 5, 7, dtype=dtype, device=device)
    for original in (
        plain,
        plain.contiguous(memory_format=torch.channels_last),
        plain[:, :, :, 1:-1],
        plain[:1].expand(3, -1, -1, -1),
        plain.transpose(2, 3)[:, 1:, ::2],
        plain[:0],
        plain[:, :1, :1, :1],
    ):
        layout = TensorLayout.of(original)
        again = layout.random(dtype, torch.Generator(device).manual_seed(0))
        assert again.shape == original.shape
        assert again.stride() == original.stride()
        assert again.data_ptr() % 64 == original.data_ptr() % 64
        assert TensorLayout.of(again) == layout


@settings(max_examples=12)
@given(problem=problems(numeric=True))
def test_passes_are_pytorchs_and_so_are_those_that_cudnn_is_told(problem: ConvProblem) -> None:
    call = call_of(problem, "float64")
    tensors = call.tensors(CPU)
    x, w = tensors.x.clone().requires_grad_(), tensors.w.clone().requires_grad_()
    arguments: dict[str, Any] = {
        name: getattr(problem, name) for name in ("stride", "padding", "dilation", "groups")
    }
    if problem.transposed:
        arguments["output_padding"] = problem.output_padding
    name = f"conv{'_transpose' if problem.transposed else ''}{problem.rank}d"
    assert problem.kind.function == name
    expected = getattr(torch, name)(x, w, tensors.bias, **arguments)
    assert tensors.grad_output is not None
    assert tensors.grad_output.shape == expected.shape
    gradients = torch.autograd.grad(expected, (x, w), tensors.grad_output)
    for pass_name, theirs in zip(PASSES, (expected, *gradients), strict=True):
        torch.testing.assert_close(call.pytorch_call(pass_name, tensors)(), theirs)
    if tensors.bias is not None:
        expected = expected - tensors.bias.reshape(-1, *[1] * problem.rank)

    # The passes of the plain convolution that cuDNN is told, on the same tensors.
    told = problem.cudnn_problem()
    given_x, given_y = tensors.x, tensors.grad_output
    if problem.transposed:
        given_x, given_y = given_y, given_x
    x, w, y = given_x.reshape(told.x), tensors.w.reshape(told.w), given_y.reshape(told.y)
    parameters = (told.stride, told.padding, told.dilation)
    function = torch.nn.functional.conv3d if problem.rank == 3 else torch.nn.functional.conv2d
    zeros = (0,) * len(told.stride)
    dgrad, wgrad, _ = torch.ops.aten.convolution_backward(
        y, x, w, None, *parameters, False, zeros, problem.groups, [True, True, False]
    )
    results = {
        "fprop": function(x, w, None, *parameters, problem.groups),
        "dgrad": dgrad,
        "wgrad": wgrad,
    }
    for pass_name, theirs in zip(PASSES, (expected, *gradients), strict=True):
        result = results[call.cudnn_pass(pass_name)]
        torch.testing.assert_close(result.reshape(theirs.shape), theirs)


@given(
    problem=problems(numeric=True),
    dtype=st.sampled_from(["float16", "float32"]),
    tf32=st.booleans(),
)
@settings(max_examples=20)
def test_a_call_survives_json(problem: ConvProblem, dtype: str, tf32: bool) -> None:
    call = dataclasses.replace(
        call_of(problem, dtype),
        grad_output=dense(*problem.output_shape),
        flags=Flags(benchmark=True, allow_tf32=tf32),
    )
    assert codec.decode(ConvCall, json.loads(json.dumps(codec.encode(call)))) == call
    assert hash(call) == hash(dataclasses.replace(call))


def test_parameters_are_filled_in_or_refused() -> None:
    tensors = "float32", dense(1, 2, 4, 4, 4), dense(3, 2, 1, 1, 1)
    volume = ConvCall.of_layouts(*tensors).problem
    assert volume.stride == volume.dilation == (1, 1, 1)
    assert volume.padding == volume.output_padding == (0, 0, 0)
    with pytest.raises(InputError, match=r"padding is \(1, 1\), but must be 3 number\(s\)"):
        ConvCall.of_layouts(*tensors, padding=(1, 1))
    others: dict[str, tuple[TensorLayout, str]] = {
        "x": (dense(2, 4, 9, 10), r".* \(2, 4, 9, 11\), got \(2, 4, 9, 10\)"),
        "w": (dense(6, 4, 3, 5), r".* \(6, 2, 3, 5\), got \(6, 4, 3, 5\)"),
        "grad_output": (dense(2, 6, 5, 8), r".* \(2, 6, 5, 7\), got"),
    }
    for name, (layout, says) in others.items():
        changes: dict[str, Any] = {name: layout}
        with pytest.raises(ValueError, match=f"{name} must have{says}"):
            dataclasses.replace(CALL, **changes)


def test_a_gradient_is_computed_alone() -> None:
    for name, mask in (("dgrad", [True, False, False]), ("wgrad", [False, True, False])):
        seen: list[Any] = []

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                seen.append((function, args))  # noqa: B023 (it is used in this round)
                return function(*args, **kwargs or {})

        call = CALL.pytorch_call(name, CALL.tensors(CPU))
        with Recorder():
            call()
        ((function, arguments),) = seen
        assert function is torch.ops.aten.convolution_backward.default
        assert arguments[-1] == mask


def test_tensors_are_the_same_for_a_seed() -> None:
    first, second, other = (CALL.tensors(CPU, seed=seed) for seed in (1, 1, 2))
    assert same_bits(first.x, second.x)
    assert not same_bits(first.x, other.x)
    assert CALL.tensors(CPU, backward=False).grad_output is None


def test_the_backend_is_pytorchs() -> None:
    assert CALL.backend("fprop", CALL.tensors(CPU)) == "Mkldnn"
    empty = dataclasses.replace(
        CALL,
        problem=dataclasses.replace(CALL.problem, batch=0),
        x=TensorLayout((0, 4, 9, 11), (396, 99, 11, 1)),
    )
    assert empty.backend("wgrad", empty.tensors(CPU)) in ("Empty", "MkldnnEmpty")
    x, w = torch.randn(4, 16, 32, 32), torch.randn(16, 16, 3, 3)
    call = ConvCall.of_layouts("float32", TensorLayout.of(x), TensorLayout.of(w), transposed=True)
    # torch's own enumeration has no name for this one.
    assert call.backend("fprop", ConvTensors(x, w)) == "MkldnnTranspose"


def test_bits_are_compared_and_not_values() -> None:
    zeros = torch.zeros(3)
    assert same_bits(zeros, torch.zeros(3))
    assert not same_bits(zeros, -zeros)
    nan = torch.full((2,), float("nan"), dtype=torch.bfloat16)
    assert same_bits(nan, nan.clone())
    assert same_bits(torch.ones(2, requires_grad=True), torch.ones(2))
