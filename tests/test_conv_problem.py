"""A convolution as data, and the very same problem made again from it."""

import dataclasses
import json

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from convtime.conv_problem import (
    PASSES,
    ConvProblem,
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


def test_output_sizes_and_calls_are_pytorchs():
    tensors = PROBLEM.tensors(CPU)
    x, w = tensors.x.clone().requires_grad_(), tensors.w.clone().requires_grad_()
    expected = torch.conv2d(x, w, tensors.bias, (2, 1), (1, 2), (1, 2), 2)
    assert PROBLEM.output_sizes == expected.shape
    assert tensors.grad_output.shape == expected.shape
    gradients = torch.autograd.grad(expected, (x, w), tensors.grad_output)
    for name, other in zip(PASSES, (expected, *gradients), strict=True):
        torch.testing.assert_close(PROBLEM.pytorch_call(name, tensors)(), other)
    assert PROBLEM.flops == 2 * expected.numel() * 2 * 3 * 5


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
    cudnn = torch.backends.cudnn
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
