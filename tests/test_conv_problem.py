"""A convolution as data, and the very same problem made again from it."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from convtime.conv_problem import (
    PASSES,
    ConvProblem,
    ConvTensors,
    Flags,
    TensorLayout,
    in_fresh_thread,
    same_bits,
)

CPU = torch.device("cpu")
PROBLEM = ConvProblem(
    dtype="float32",
    x=TensorLayout((2, 4, 9, 11), (396, 1, 44, 4), 4),
    w=TensorLayout((6, 2, 3, 5), (30, 15, 5, 1)),
    bias=True,
    stride=(2, 1),
    padding=(1, 2),
    dilation=(1, 2),
    groups=2,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x[:, :, :, 1:-1],
        lambda x: x[:1].expand(3, -1, -1, -1),
        lambda x: x.transpose(2, 3)[:, 1:, ::2],
        lambda x: x[:0],
        lambda x: x[:, :1, :1, :1],
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


def test_a_problem_survives_json():
    problem = dataclasses.replace(
        PROBLEM,
        grad_output=TensorLayout((2, 6, 5, 7), (210, 35, 7, 1)),
        flags=Flags(benchmark=True, allow_tf32=False),
    )
    assert ConvProblem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem
    assert hash(problem) == hash(dataclasses.replace(problem))


def dense(*sizes):
    return TensorLayout.of(torch.empty(sizes, device="meta"))


def example(rank, transposed):
    """A problem in which no two parameters of a dimension, and no two dimensions, are alike."""
    return ConvProblem(
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
def test_output_sizes_and_calls_are_pytorchs(rank, transposed):
    problem = example(rank, transposed)
    tensors = problem.tensors(CPU)
    x, w = tensors.x.clone().requires_grad_(), tensors.w.clone().requires_grad_()
    arguments = {"stride": problem.stride, "padding": problem.padding, "groups": 2}
    arguments["dilation"] = problem.dilation
    if transposed:
        arguments["output_padding"] = problem.output_padding
    expected = FUNCTIONS[rank, transposed](x, w, tensors.bias, **arguments)
    assert problem.output_sizes == expected.shape
    assert tensors.grad_output.shape == expected.shape
    assert problem.op == FUNCTIONS[rank, transposed].__name__
    gradients = torch.autograd.grad(expected, (x, w), tensors.grad_output)
    for name, other in zip(PASSES, (expected, *gradients), strict=True):
        torch.testing.assert_close(problem.pytorch_call(name, tensors)(), other)
    with FlopCounterMode(display=False) as counter:
        problem.pytorch_call("fprop", tensors)()
    assert problem.flops == counter.get_total_flops()
    assert ConvProblem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


@pytest.mark.parametrize(("rank", "transposed"), FUNCTIONS)
def test_cudnn_is_told_of_a_convolution_that_has_these_passes(rank, transposed):
    """What PyTorch gives to cuDNN, here computed by PyTorch's convolution of that problem."""
    problem = example(rank, transposed)
    tensors = problem.tensors(CPU)
    told = problem.cudnn_problem()
    sizes = {"x": told.x, "w": told.w, "y": told.y}
    given = {"w": tensors.w, "x": tensors.x, "y": tensors.grad_output}
    if transposed:
        given["x"], given["y"] = given["y"], given["x"]
    x, w, y = (given[name].reshape(sizes[name]) for name in "xwy")
    inside = dataclasses.replace(problem, bias=False)
    for name in PASSES:
        theirs = inside.pytorch_call(name, dataclasses.replace(tensors, bias=None))()
        parameters = (told.stride, told.padding, told.dilation)
        if problem.cudnn_pass(name) == "fprop":
            ours = torch.nn.functional.conv3d if rank == 3 else torch.nn.functional.conv2d
            result = ours(x, w, None, *parameters, problem.groups)
        else:
            mask = [problem.cudnn_pass(name) == one for one in ("dgrad", "wgrad", "bias")]
            zeros = (0,) * len(told.stride)
            result = torch.ops.aten.convolution_backward(
                y, x, w, None, *parameters, False, zeros, problem.groups, mask
            )[mask.index(True)]
        torch.testing.assert_close(result.reshape(theirs.shape), theirs)


def test_parameters_are_filled_in_or_refused():
    volume = ConvProblem("float32", dense(1, 2, 4, 4, 4), dense(3, 2, 1, 1, 1))
    assert volume.stride == volume.dilation == (1, 1, 1)
    assert volume.padding == volume.output_padding == (0, 0, 0)
    with pytest.raises(ValueError, match=r"padding must be 3 numbers, .* got \(1, 1\)"):
        dataclasses.replace(volume, padding=(1, 1))


def test_a_backend_without_a_name_in_torch_has_one():
    x, w = torch.randn(4, 16, 32, 32), torch.randn(16, 16, 3, 3)
    problem = ConvProblem("float32", TensorLayout.of(x), TensorLayout.of(w), transposed=True)
    assert problem.backend("fprop", ConvTensors(x, w)) == "MkldnnTranspose"


@pytest.mark.parametrize(
    ("name", "mask"), [("dgrad", [True, False, False]), ("wgrad", [False, True, False])]
)
def test_a_pass_is_run_alone(name, mask):
    calls = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append((function, args))
            return function(*args, **kwargs or {})

    call = PROBLEM.pytorch_call(name, PROBLEM.tensors(CPU))
    with Recorder():
        call()
    ((function, arguments),) = calls
    assert function is torch.ops.aten.convolution_backward.default
    assert arguments[-1] == mask


def test_tensors_are_the_same_for_a_seed():
    first, second, other = (PROBLEM.tensors(CPU, seed=seed) for seed in (1, 1, 2))
    assert same_bits(first.x, second.x)
    assert same_bits(first.grad_output, second.grad_output)
    assert not same_bits(first.x, other.x)
    assert PROBLEM.tensors(CPU, backward=False).grad_output is None


def test_the_backend_is_pytorchs():
    tensors = PROBLEM.tensors(CPU)
    assert PROBLEM.backend("fprop", tensors) == "Mkldnn"
    empty = dataclasses.replace(PROBLEM, x=TensorLayout((0, 4, 9, 11), (396, 99, 11, 1)))
    assert empty.backend("wgrad", empty.tensors(CPU)) in ("Empty", "MkldnnEmpty")


def test_flags_are_applied_and_set_back():
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


def test_both_kinds_of_precision_flags_are_understood():
    cudnn: Any = torch.backends.cudnn  # of which the stubs know half
    with Flags().applied():  # so that all is set back
        cudnn.allow_tf32 = False
        assert not Flags.current().allow_tf32
        with Flags(allow_tf32=True).applied():
            assert cudnn.conv.fp32_precision == "tf32"
        assert not Flags.current().allow_tf32
        cudnn.allow_tf32 = True
        assert Flags.current().allow_tf32
        cudnn.conv.fp32_precision = "ieee"
        assert not Flags.current().allow_tf32


@pytest.fixture
def conv_precision():
    """That of cuDNN's convolutions, here inherited from torch.backends.fp32_precision."""
    backends: Any = torch.backends  # of which the stubs know half
    conv, above = backends.cudnn.conv, backends.fp32_precision
    before = conv.fp32_precision
    conv.fp32_precision = "none"
    yield conv
    backends.fp32_precision = above
    conv.fp32_precision = before


def test_an_inherited_precision_stays_inherited_where_it_is_the_wanted_one(conv_precision):
    backends: Any = torch.backends
    for first, second in (("tf32", "ieee"), ("ieee", "tf32"), ("none", "tf32")):
        backends.fp32_precision = first
        with Flags.current().applied():
            assert conv_precision.fp32_precision == first
        backends.fp32_precision = second
        assert conv_precision.fp32_precision == second


def test_a_precision_that_had_to_be_set_is_set_back(conv_precision):
    for before in ("none", "ieee", "tf32"):
        conv_precision.fp32_precision = before
        with Flags(allow_tf32=before != "tf32").applied():
            assert (conv_precision.fp32_precision == "tf32") == (before != "tf32")
        assert conv_precision.fp32_precision == before


def test_bits_are_compared_and_not_values():
    zeros = torch.zeros(3)
    assert same_bits(zeros, torch.zeros(3))
    assert not same_bits(zeros, -zeros)
    nan = torch.full((2,), float("nan"), dtype=torch.bfloat16)
    assert same_bits(nan, nan.clone())
    assert same_bits(torch.ones(2, requires_grad=True), torch.ones(2))


def test_a_fresh_thread_gives_back_results_and_errors(device):
    def fail():
        raise KeyError("inside")

    assert in_fresh_thread(torch.is_grad_enabled, device) is False
    with pytest.raises(KeyError, match="inside"):
        in_fresh_thread(fail, device)


@pytest.mark.cuda
def test_a_fresh_thread_runs_on_the_current_stream():
    stream = torch.cuda.Stream()
    device = torch.device("cuda", torch.cuda.current_device())
    with torch.cuda.stream(stream):
        assert in_fresh_thread(torch.cuda.current_stream, device) == stream
