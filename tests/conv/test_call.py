"""A call of a convolution as data, the same call made again from it, and torch's settings."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode

from convtime.conv.call import PASSES, ConvCall, ConvTensors, Flags, TensorLayout, same_bits
from convtime.conv.problem import ConvProblem
from convtime.core.errors import InputError
from tests.helpers.convolutions import dense, problems

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

    # The passes of the plain convolution that cuDNN computes, on the same tensors.
    plain = problem.cudnn_problem()
    given_x, given_y = tensors.x, tensors.grad_output
    if problem.transposed:
        given_x, given_y = given_y, given_x
    x, w = given_x.reshape(plain.input_shape), tensors.w.reshape(plain.weight_shape)
    y = given_y.reshape(plain.output_shape)
    parameters = (plain.stride, plain.padding, plain.dilation)
    function: Any = torch.nn.functional.conv3d if problem.rank == 3 else torch.nn.functional.conv2d
    zeros = (0,) * len(plain.stride)
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


@pytest.mark.parametrize(("name", "mask"), [("dgrad", [1, 0, 0]), ("wgrad", [0, 1, 0])])
def test_a_gradient_is_computed_alone(name: str, mask: list[int]) -> None:
    seen: list[Any] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append((func, args[-1]))
            return func(*args)

    call = CALL.pytorch_call(name, CALL.tensors(CPU))
    with Recorder():
        call()
    assert seen == [(torch.ops.aten.convolution_backward.default, mask)]


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
    first, second, other = (CALL.tensors(CPU, seed=seed) for seed in (1, 1, 2))
    assert same_bits(first.x, second.x)
    assert not same_bits(first.x, other.x)


BACKENDS: Any = torch.backends  # of which the stubs know half


def test_flags_are_applied_and_set_back() -> None:
    before = Flags.current()
    other = Flags(
        enabled=not before.enabled,
        benchmark=not before.benchmark,
        benchmark_limit=before.benchmark_limit,
        deterministic=not before.deterministic,
        allow_tf32=not before.allow_tf32,
        deterministic_algorithms=not before.deterministic_algorithms,
        depthwise_kernel=before.depthwise_kernel,
    )
    with other.applied():
        assert Flags.current() == other
    assert Flags.current() == before
    with pytest.raises(KeyError), other.applied():
        raise KeyError
    assert Flags.current() == before


@pytest.fixture
def conv_precision() -> Iterator[Any]:
    """That of cuDNN's convolutions, here inherited from torch.backends.fp32_precision."""
    conv, above = BACKENDS.cudnn.conv, BACKENDS.fp32_precision
    before = conv.fp32_precision
    conv.fp32_precision = "none"
    yield conv
    BACKENDS.fp32_precision = above
    conv.fp32_precision = before


def test_a_precision_is_set_back_and_stays_inherited_where_it_is_wanted(
    conv_precision: Any,
) -> None:
    for before in ("none", "ieee", "tf32"):
        conv_precision.fp32_precision = before
        with Flags(allow_tf32=before != "tf32").applied():
            assert (conv_precision.fp32_precision == "tf32") == (before != "tf32")
        assert conv_precision.fp32_precision == before
    conv_precision.fp32_precision = "none"
    for first, second in (("tf32", "ieee"), ("ieee", "tf32"), ("none", "tf32")):
        BACKENDS.fp32_precision = first
        with Flags.current().applied():
            assert conv_precision.fp32_precision == first
        BACKENDS.fp32_precision = second
        assert conv_precision.fp32_precision == second
