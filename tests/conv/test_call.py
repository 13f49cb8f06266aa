"""A call of a convolution as data, and the very same call made again from it."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from convtime.conv.call import PASSES, ConvCall, ConvTensors, TensorLayout, same_bits
from convtime.conv.flags import Flags
from convtime.conv.problem import ConvProblem
from convtime.core import codec
from convtime.core.errors import InputError

CPU = torch.device("cpu")
CALL = ConvCall(
    ConvProblem(
        batch=2,
        in_channels=4,
        size=(9, 11),
        out_channels=6,
        kernel_size=(3, 5),
        stride=(2, 1),
        padding=(1, 2),
        dilation=(1, 2),
        groups=2,
        bias=True,
    ),
    dtype="float32",
    x=TensorLayout((2, 4, 9, 11), (396, 1, 44, 4), 4),
    w=TensorLayout((6, 2, 3, 5), (30, 15, 5, 1)),
)


@pytest.mark.parametrize(
    "make",
    [
        lambda tensor: tensor,
        lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
        lambda tensor: tensor[:, :, :, 1:-1],
        lambda tensor: tensor[:1].expand(3, -1, -1, -1),
        lambda tensor: tensor.transpose(2, 3)[:, 1:, ::2],
        lambda tensor: tensor[:0],
        lambda tensor: tensor[:, :1, :1, :1],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_layout_is_made_again(device, dtype, make):
    original = make(torch.zeros(4, 3, 5, 7, dtype=dtype, device=device))
    layout = TensorLayout.of(original)
    again = layout.random(dtype, torch.Generator(device).manual_seed(0))
    assert again.shape == original.shape
    assert again.stride() == original.stride()
    assert again.data_ptr() % 64 == original.data_ptr() % 64
    assert TensorLayout.of(again) == layout


def through_json(call):
    return codec.decode(ConvCall, json.loads(json.dumps(codec.encode(call))))


def test_a_call_survives_json():
    call = dataclasses.replace(
        CALL,
        grad_output=TensorLayout((2, 6, 5, 7), (210, 35, 7, 1)),
        flags=Flags(benchmark=True, allow_tf32=False),
    )
    assert through_json(call) == call
    assert hash(call) == hash(dataclasses.replace(call))


def dense(*sizes):
    return TensorLayout.of(torch.empty(sizes, device="meta"))


def example(rank, transposed):
    """A call in which no two parameters of a dimension, and no two dimensions, are alike."""
    return ConvCall.of_layouts(
        dtype="float32",
        x=dense(2, 4, *(5, 9, 7)[:rank]),
        w=dense(*((4, 3) if transposed else (6, 2)), *(3, 2, 4)[:rank]),
        bias=True,
        stride=(3, 2, 4)[:rank],
        padding=(1, 0, 2)[:rank],
        dilation=(1, 2, 1)[:rank],
        groups=2,
        transposed=transposed,
        output_padding=(2, 1, 3)[:rank] if transposed else (),
    )


FUNCTIONS: dict[tuple[int, bool], Any] = {
    (1, False): torch.conv1d,
    (2, False): torch.conv2d,
    (3, False): torch.conv3d,
    (1, True): torch.conv_transpose1d,
    (2, True): torch.conv_transpose2d,
    (3, True): torch.conv_transpose3d,
}


@pytest.mark.parametrize(("rank", "transposed"), FUNCTIONS)
def test_output_shape_and_calls_are_pytorchs(rank, transposed):
    call = example(rank, transposed)
    problem, tensors = call.problem, call.tensors(CPU)
    x, w = tensors.x.clone().requires_grad_(), tensors.w.clone().requires_grad_()
    arguments = {"stride": problem.stride, "padding": problem.padding, "groups": 2}
    arguments["dilation"] = problem.dilation
    if transposed:
        arguments["output_padding"] = problem.output_padding
    expected = FUNCTIONS[rank, transposed](x, w, tensors.bias, **arguments)
    assert problem.output_shape == expected.shape
    assert tensors.grad_output.shape == expected.shape
    assert problem.kind.function == FUNCTIONS[rank, transposed].__name__
    gradients = torch.autograd.grad(expected, (x, w), tensors.grad_output)
    for name, theirs in zip(PASSES, (expected, *gradients), strict=True):
        torch.testing.assert_close(call.pytorch_call(name, tensors)(), theirs)
    with FlopCounterMode(display=False) as counter:
        call.pytorch_call("fprop", tensors)()
    assert problem.flops == counter.get_total_flops()
    assert through_json(call) == call


@pytest.mark.parametrize(("rank", "transposed"), FUNCTIONS)
def test_cudnn_is_told_of_a_convolution_that_has_these_passes(rank, transposed):
    """What PyTorch gives to cuDNN, here computed by PyTorch's convolution of that problem."""
    call = example(rank, transposed)
    problem, tensors = call.problem, call.tensors(CPU)
    told = problem.cudnn_problem()
    sizes = {"x": told.x, "w": told.w, "y": told.y}
    given = {"w": tensors.w, "x": tensors.x, "y": tensors.grad_output}
    if transposed:
        given["x"], given["y"] = given["y"], given["x"]
    x, w, y = (given[name].reshape(sizes[name]) for name in "xwy")
    inside = dataclasses.replace(call, problem=dataclasses.replace(problem, bias=False))
    for name in PASSES:
        theirs = inside.pytorch_call(name, dataclasses.replace(tensors, bias=None))()
        parameters = (told.stride, told.padding, told.dilation)
        if call.cudnn_pass(name) == "fprop":
            ours = torch.nn.functional.conv3d if rank == 3 else torch.nn.functional.conv2d
            result = ours(x, w, None, *parameters, problem.groups)
        else:
            mask = [call.cudnn_pass(name) == wanted for wanted in ("dgrad", "wgrad", "bias")]
            zeros = (0,) * len(told.stride)
            result = torch.ops.aten.convolution_backward(
                y, x, w, None, *parameters, False, zeros, problem.groups, mask
            )[mask.index(True)]
        torch.testing.assert_close(result.reshape(theirs.shape), theirs)


def test_parameters_are_filled_in_or_refused():
    tensors = "float32", dense(1, 2, 4, 4, 4), dense(3, 2, 1, 1, 1)
    volume = ConvCall.of_layouts(*tensors).problem
    assert volume.stride == volume.dilation == (1, 1, 1)
    assert volume.padding == volume.output_padding == (0, 0, 0)
    with pytest.raises(InputError, match=r"padding is \(1, 1\), but must be 3 number\(s\)"):
        ConvCall.of_layouts(*tensors, padding=(1, 1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": dense(2, 4, 9, 10)}, r"x must have .* \(2, 4, 9, 11\), got \(2, 4, 9, 10\)"),
        ({"w": dense(6, 4, 3, 5)}, r"w must have .* \(6, 2, 3, 5\), got \(6, 4, 3, 5\)"),
        ({"grad_output": dense(2, 6, 5, 8)}, r"grad_output must have .* \(2, 6, 5, 7\), got"),
    ],
)
def test_tensors_of_other_shapes_than_the_problems_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(CALL, **changes)


def test_a_backend_without_a_name_in_torch_has_one():
    x, w = torch.randn(4, 16, 32, 32), torch.randn(16, 16, 3, 3)
    layouts = TensorLayout.of(x), TensorLayout.of(w)
    call = ConvCall.of_layouts("float32", *layouts, transposed=True)
    assert call.backend("fprop", ConvTensors(x, w)) == "MkldnnTranspose"


@pytest.mark.parametrize(
    ("name", "mask"), [("dgrad", [True, False, False]), ("wgrad", [False, True, False])]
)
def test_a_pass_is_run_alone(name, mask):
    seen = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append((function, args))
            return function(*args, **kwargs or {})

    call = CALL.pytorch_call(name, CALL.tensors(CPU))
    with Recorder():
        call()
    ((function, arguments),) = seen
    assert function is torch.ops.aten.convolution_backward.default
    assert arguments[-1] == mask


def test_tensors_are_the_same_for_a_seed():
    first, second, other = (CALL.tensors(CPU, seed=seed) for seed in (1, 1, 2))
    assert same_bits(first.x, second.x)
    assert same_bits(first.grad_output, second.grad_output)
    assert not same_bits(first.x, other.x)
    assert CALL.tensors(CPU, backward=False).grad_output is None


def test_the_backend_is_pytorchs():
    tensors = CALL.tensors(CPU)
    assert CALL.backend("fprop", tensors) == "Mkldnn"
    empty = dataclasses.replace(
        CALL,
        problem=dataclasses.replace(CALL.problem, batch=0),
        x=TensorLayout((0, 4, 9, 11), (396, 99, 11, 1)),
    )
    assert empty.backend("wgrad", empty.tensors(CPU)) in ("Empty", "MkldnnEmpty")


def test_bits_are_compared_and_not_values():
    zeros = torch.zeros(3)
    assert same_bits(zeros, torch.zeros(3))
    assert not same_bits(zeros, -zeros)
    nan = torch.full((2,), float("nan"), dtype=torch.bfloat16)
    assert same_bits(nan, nan.clone())
    assert same_bits(torch.ones(2, requires_grad=True), torch.ones(2))
