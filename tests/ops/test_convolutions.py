from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn import grad as torch_grad

from convtime import ops
from convtime.ops import convolutions

# name: op, input shape, weight shape, arguments
PROBLEMS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ("conv2d", (2, 3, 9, 11), (4, 3, 3, 3), {}),
    "padded": ("conv2d", (2, 8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "strided": ("conv2d", (2, 8, 17, 15), (16, 8, 3, 5), {"stride": (2, 3), "padding": (1, 2)}),
    "dilated": ("conv2d", (2, 8, 17, 15), (16, 8, 3, 3), {"dilation": (2, 1), "padding": (2, 1)}),
    "pointwise": ("conv2d", (2, 64, 14, 14), (32, 64, 1, 1), {}),
    "grouped": ("conv2d", (2, 8, 9, 9), (12, 2, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise": ("conv2d", (2, 32, 14, 14), (32, 1, 3, 3), {"groups": 32, "padding": 1}),
    "one image": ("conv2d", (1, 16, 14, 14), (16, 16, 3, 3), {"padding": 1}),
    "one channel": ("conv2d", (3, 1, 28, 28), (8, 1, 5, 5), {"padding": 2}),
    "kernel as large as the input": ("conv2d", (2, 4, 5, 5), (6, 4, 5, 5), {}),
    "unbatched": ("conv2d", (8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "empty batch": ("conv2d", (0, 8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "padding larger than the kernel": ("conv2d", (1, 2, 4, 4), (3, 2, 3, 3), {"padding": 7}),
    "padding same": ("conv2d", (2, 4, 9, 9), (4, 4, 3, 5), {"padding": "same"}),
    "padding same, even kernel": (
        "conv2d",
        (2, 4, 9, 9),
        (4, 4, 4, 2),
        {"padding": "same", "dilation": 3},
    ),
    "padding valid": ("conv2d", (2, 4, 9, 9), (4, 4, 4, 2), {"padding": "valid"}),
    "one number in a list": ("conv2d", (2, 4, 9, 9), (4, 4, 3, 3), {"padding": [1], "stride": [2]}),
    "1-d": ("conv1d", (2, 8, 33), (16, 8, 5), {"stride": 2, "padding": 3, "dilation": 2}),
    "1-d, grouped": ("conv1d", (2, 8, 17), (12, 2, 3), {"groups": 4}),
    "1-d, depthwise": ("conv1d", (2, 32, 40), (32, 1, 3), {"groups": 32, "padding": 1}),
    "1-d, one channel": ("conv1d", (2, 1, 400), (8, 1, 10), {"stride": (5,)}),
    "1-d, unbatched": ("conv1d", (8, 17), (16, 8, 3), {}),
    "1-d, empty batch": ("conv1d", (0, 8, 17), (16, 8, 3), {}),
    "1-d, padding same": ("conv1d", (2, 4, 9), (4, 4, 4), {"padding": "same", "dilation": 3}),
    "3-d": ("conv3d", (2, 4, 7, 9, 11), (8, 4, 3, 3, 2), {"stride": (1, 2, 3), "padding": 1}),
    "3-d, pointwise": ("conv3d", (1, 16, 3, 5, 7), (8, 16, 1, 1, 1), {}),
    "3-d, grouped": ("conv3d", (2, 8, 5, 5, 5), (12, 2, 3, 3, 3), {"groups": 4, "padding": [1]}),
    "3-d, depthwise": ("conv3d", (2, 8, 5, 5, 5), (8, 1, 3, 3, 3), {"groups": 8, "padding": 1}),
    "3-d, dilated": ("conv3d", (2, 4, 7, 9, 9), (8, 4, 3, 3, 3), {"dilation": (1, 2, 3)}),
    "3-d, unbatched": ("conv3d", (4, 5, 6, 7), (8, 4, 3, 3, 3), {}),
    "3-d, empty batch": ("conv3d", (0, 4, 5, 6, 7), (8, 4, 3, 3, 3), {}),
    "3-d, padding same": ("conv3d", (1, 4, 5, 5, 5), (4, 4, 2, 3, 4), {"padding": "same"}),
    "transposed": (
        "conv_transpose2d",
        (2, 8, 5, 6),
        (8, 4, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "transposed, plain": ("conv_transpose2d", (2, 8, 5, 6), (8, 4, 3, 3), {}),
    "transposed, by 4": (
        "conv_transpose2d",
        (2, 8, 7, 7),
        (8, 4, 4, 4),
        {"stride": 2, "padding": 1},
    ),
    "transposed, grouped": (
        "conv_transpose2d",
        (2, 8, 5, 6),
        (8, 3, 3, 2),
        {"groups": 4, "stride": (3, 2), "output_padding": (2, 0)},
    ),
    "transposed, depthwise": ("conv_transpose2d", (2, 8, 5, 6), (8, 1, 4, 4), {"groups": 8}),
    "transposed, dilated": (
        "conv_transpose2d",
        (2, 8, 5, 6),
        (8, 4, 3, 3),
        {"dilation": (2, 3), "padding": (1, 2)},
    ),
    "transposed, output padding above the stride": (
        "conv_transpose2d",
        (2, 8, 5, 6),
        (8, 4, 3, 3),
        {"dilation": 3, "output_padding": 2},
    ),
    "transposed, unbatched": ("conv_transpose2d", (8, 5, 6), (8, 4, 3, 3), {"stride": 2}),
    "transposed, empty batch": ("conv_transpose2d", (0, 8, 5, 6), (8, 4, 3, 3), {"stride": 2}),
    "transposed 1-d": (
        "conv_transpose1d",
        (2, 8, 9),
        (8, 4, 5),
        {"stride": 3, "padding": 1, "output_padding": 2, "dilation": 2},
    ),
    "transposed 1-d, grouped": ("conv_transpose1d", (2, 8, 9), (8, 2, 4), {"groups": 4}),
    "transposed 3-d": (
        "conv_transpose3d",
        (2, 4, 3, 4, 5),
        (4, 6, 3, 3, 2),
        {"stride": (1, 2, 3), "padding": 1, "output_padding": (0, 1, 2)},
    ),
    "transposed 3-d, unbatched": ("conv_transpose3d", (4, 3, 4, 5), (4, 6, 2, 2, 2), {"stride": 2}),
    "transposed 3-d, grouped": (
        "conv_transpose3d",
        (1, 4, 3, 4, 5),
        (4, 3, 2, 2, 2),
        {"groups": 2},
    ),
}
OPS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
# A problem of each op that has a number of its own for each argument.
REPRESENTATIVES = ("1-d", "strided", "3-d", "transposed 1-d", "transposed", "transposed 3-d")
WORDS = ("same", "valid")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def functions(name: str) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """convtime's and PyTorch's."""
    op = PROBLEMS[name][0]
    return getattr(ops, op), getattr(F, op)


def make_inputs(
    name: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, Any]]:
    op, x_shape, w_shape, kwargs = PROBLEMS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(x_shape, generator=generator).to(device, dtype)
    w = torch.randn(w_shape, generator=generator).to(device, dtype)
    outputs = w_shape[1] * kwargs.get("groups", 1) if "transpose" in op else w_shape[0]
    b = torch.randn(outputs, generator=generator).to(device, dtype) if bias else None
    if channels_last and w.dim() in FORMATS:
        w = w.contiguous(memory_format=FORMATS[w.dim()])
        if x.dim() == w.dim():
            x = x.contiguous(memory_format=FORMATS[x.dim()])
    return x, w, b, kwargs


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_convolution_is_pytorchs_to_the_bit(
    name: str, dtype: torch.dtype, bias: bool, channels_last: bool, device: torch.device
) -> None:
    x, w, b, kwargs = make_inputs(name, device, dtype, channels_last, bias)
    ours, theirs = functions(name)
    # What transposed convolutions run in float64 adds up differently from call to call.
    repeatable = dtype == torch.float64 and "transposed" in name
    with torch.backends.cudnn.flags(enabled=True, deterministic=repeatable):
        expected, actual = theirs(x, w, b, **kwargs), ours(x, w, b, **kwargs)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.stride() == expected.stride()
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("make_x", ["transposed", "sliced", "expanded", "misaligned"])
def test_conv2d_takes_any_strides(make_x: str, device: torch.device) -> None:
    w = torch.randn(8, 4, 3, 3, device=device)
    x = {
        "transposed": torch.randn(2, 4, 12, 10, device=device).transpose(2, 3),
        "sliced": torch.randn(2, 8, 10, 24, device=device)[:, ::2, :, ::2],
        "expanded": torch.randn(1, 4, 1, 12, device=device).expand(2, 4, 10, 12),
        "misaligned": torch.randn(1 + 2 * 4 * 10 * 12, device=device)[1:].view(2, 4, 10, 12),
    }[make_x]
    assert torch.equal(ops.conv2d(x, w, padding=1), F.conv2d(x, w, padding=1))


@pytest.mark.cuda
@pytest.mark.parametrize("allow_tf32", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_conv2d_follows_torchs_cudnn_flags(allow_tf32: bool, deterministic: bool) -> None:
    x, w = (torch.randn(16, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda"))
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=deterministic, allow_tf32=allow_tf32
    ):
        assert torch.equal(ops.conv2d(x, w, padding=1), F.conv2d(x, w, padding=1))


@pytest.mark.cuda
def test_conv2d_is_used_on_the_current_stream_and_from_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    x, w = (torch.randn(16, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda"))
    expected = F.conv2d(x, w, padding=1)
    torch.cuda.synchronize()

    def work(_: int) -> bool:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            results = [ops.conv2d(x, w, padding=1) for _ in range(20)]
            stream.synchronize()
        return all(torch.equal(result, expected) for result in results)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def with_sequences(name: str) -> dict[str, Any]:
    """The arguments as the op takes them: ops.conv2d is what takes single numbers."""
    op, _, _, kwargs = PROBLEMS[name]
    spatial = int(op[-2])
    return {
        key: [value] * spatial if isinstance(value, int) and key != "groups" else value
        for key, value in kwargs.items()
    }


@pytest.mark.parametrize(
    "name",
    [*REPRESENTATIVES, "grouped", "depthwise", "unbatched", "one number in a list",
     "1-d, unbatched", "transposed, grouped", "transposed, output padding above the stride"],
)  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
def test_opcheck(name: str, bias: bool, device: torch.device) -> None:
    x, w, b, _ = make_inputs(name, device, bias=bias)
    kwargs = with_sequences(name)
    op = getattr(torch.ops.convtime, PROBLEMS[name][0]).default
    torch.library.opcheck(op, (x, w, b), kwargs)
    leaves = [tensor.requires_grad_() if tensor is not None else None for tensor in (x, w, b)]
    torch.library.opcheck(op, tuple(leaves), kwargs)


@pytest.fixture
def repeatable() -> Iterator[None]:
    """Leaves out cuDNN's engines whose sums come out differently from run to run."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_pytorchs_to_the_bit(
    name: str, dtype: torch.dtype, channels_last: bool, device: torch.device
) -> None:
    *tensors, kwargs = make_inputs(name, device, dtype, channels_last)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    expected, actual = (function(*leaves, **kwargs) for function in functions(name))
    grad = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(actual, leaves, grad),
        torch.autograd.grad(expected, leaves, grad),
        strict=True,
    ):
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", REPRESENTATIVES)
@pytest.mark.parametrize("needs_grad", list(itertools.product([False, True], repeat=3)))
def test_only_the_gradients_that_are_asked_for(
    needs_grad: tuple[bool, ...], name: str, device: torch.device
) -> None:
    x, w, b, kwargs = make_inputs(name, device)
    tensors = [
        tensor.requires_grad_(needed) for tensor, needed in zip((x, w, b), needs_grad, strict=True)
    ]
    actual = functions(name)[0](*tensors, **kwargs)
    assert actual.requires_grad == any(needs_grad)
    if any(needs_grad):
        actual.backward(torch.ones_like(actual))
    assert [tensor.grad is not None for tensor in tensors] == list(needs_grad)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("grad_layout", ["contiguous", "channels_last", "expanded", "misaligned"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["grouped", "1-d", "3-d", "transposed", "transposed 3-d"])
def test_gradients_take_any_layout_of_the_outputs_gradient(
    name: str, grad_layout: str, channels_last: bool, device: torch.device
) -> None:
    x, w, _, kwargs = make_inputs(name, device, channels_last=channels_last)
    leaves = [x.requires_grad_(), w.requires_grad_()]
    expected, actual = (function(*leaves, **kwargs) for function in functions(name))
    shape = expected.shape
    last = FORMATS.get(expected.dim(), torch.contiguous_format)
    grad = {
        "contiguous": torch.randn_like(expected).contiguous(),
        "channels_last": torch.randn_like(expected).to(memory_format=last),
        "expanded": torch.randn((), device=device).expand(shape),
        "misaligned": torch.randn(1 + expected.numel(), device=device)[1:].view(shape),
    }[grad_layout]
    for ours, theirs in zip(
        torch.autograd.grad(actual, leaves, grad),
        torch.autograd.grad(expected, leaves, grad),
        strict=True,
    ):
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "name", [name for name, (_, x, w, _) in PROBLEMS.items() if len(x) == len(w) and x[0] > 0]
)
def test_each_gradient_alone_is_pytorchs(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    x, w, b, kwargs = make_inputs(name, device, dtype)
    assert b is not None
    op, leaves = PROBLEMS[name][0], [tensor.requires_grad_() for tensor in (x, w, b)]
    output = functions(name)[1](*leaves, **kwargs)
    grad = torch.randn_like(output)
    expected = torch.autograd.grad(output, leaves, grad)
    actual = (
        getattr(ops, f"{op}_input")(x.shape, w, grad, **kwargs),
        getattr(ops, f"{op}_weight")(x, w.shape, grad, **kwargs),
        getattr(ops, f"conv{op[-2]}d_bias")(grad),
    )
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)  # other kernels may run
    # torch_grad takes no padding by name and has no transposed convolutions.
    if hasattr(torch_grad, f"{op}_input") and not isinstance(kwargs.get("padding"), str):
        theirs = getattr(torch_grad, f"{op}_input")(x.shape, w, grad, **kwargs)
        assert torch.equal(actual[0], theirs)
        theirs = getattr(torch_grad, f"{op}_weight")(x, w.shape, grad, **kwargs)
        assert torch.equal(actual[1], theirs)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize(
    "name", [*REPRESENTATIVES, "grouped", "unbatched", "transposed, unbatched"]
)
def test_double_backward_is_pytorchs_to_the_bit(name: str, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device)
    assert b is not None
    leaves = [tensor.requires_grad_() for tensor in (x, w, b)]

    def second_order(function: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        output = function(*leaves, **kwargs)
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in first]).sum()
        return list(torch.autograd.grad(total, leaves))

    for ours, theirs in zip(*map(second_order, functions(name)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("op", OPS)
def test_gradgradcheck(op: str, device: torch.device) -> None:
    options: dict[str, Any] = {"dtype": torch.float64, "device": device, "requires_grad": True}
    size = (4, 3, 2)[: int(op[-2])]
    x = torch.randn(2, 4, *size, **options)
    w = torch.randn(4, 2, *(2 for _ in size), **options)
    b = torch.randn(4, **options)

    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = getattr(ops, op)(*tensors, stride=2, padding=1, groups=2)
        return output

    assert torch.autograd.gradcheck(fn, (x, w, b), nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(fn, (x, w, b), nondet_tol=1e-12)


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)])
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_opcheck_of_backward(
    name: str, mask: tuple[bool, bool, bool], device: torch.device
) -> None:
    x, w, _, kwargs = make_inputs(name, device)
    grad = torch.randn_like(functions(name)[1](x, w, **kwargs))
    settings = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, **kwargs}
    spatial = w.dim() - 2
    numbers = {
        key: [value] * spatial if isinstance(value, int) else list(value)
        for key, value in settings.items()
    }
    arguments = (
        numbers["stride"], numbers["padding"], numbers["dilation"], "transposed" in name,
        numbers["output_padding"], 1, mask,
    )  # fmt: skip
    op = torch.ops.convtime.convolution_backward.default
    torch.library.opcheck(op, (grad, x, w, *arguments))
    leaves = tuple(tensor.requires_grad_() for tensor in (grad, x, w))
    # Not test_aot_dispatch_dynamic: torch 2.11's double backward takes no symbolic sizes.
    tests = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_static",
    )
    torch.library.opcheck(op, (*leaves, *arguments), test_utils=tests)


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_func_grad_is_pytorchs(name: str, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device, torch.float64)

    def loss(w: torch.Tensor, function: Callable[..., torch.Tensor]) -> torch.Tensor:
        return function(x, w, b, **kwargs).square().sum()

    ours, theirs = (torch.func.grad(loss)(w, function) for function in functions(name))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", [name for name in ops.__all__ if name.startswith("conv")])
def test_generated_functions_are_like_written_ones(name: str) -> None:
    function = getattr(ops, name)
    assert function.__name__ == function.__qualname__ == function.__code__.co_name == name
    assert pickle.loads(pickle.dumps(function)) is function
    documentation = inspect.getdoc(function)
    assert "conv" in documentation.splitlines()[0]
    assert not {"{", "}"} & set(documentation)
    assert max(map(len, documentation.splitlines())) <= 100
    assert "torch.Tensor" in str(inspect.signature(function))


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_fx_records_the_op(name: str, device: torch.device) -> None:
    x, w, _, kwargs = make_inputs(name, device)
    ours, theirs = functions(name)

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return ours(x, w, **kwargs)

    traced = torch.fx.symbolic_trace(Net())
    assert f"convtime.{ours.__name__}(" in traced.code
    assert torch.equal(traced(x, w), theirs(x, w, **kwargs))


def test_torch_function_overrides_see_the_call(device: torch.device, spy: Any) -> None:
    class Tagged(torch.Tensor):
        pass

    x, w, _, _ = make_inputs("plain", device)
    assert isinstance(ops.conv2d(x.as_subclass(Tagged), w), Tagged)
    with spy:
        ops.conv2d(x, w)
    assert torch.ops.convtime.conv2d in spy.seen


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a call that does not take the direct entry from Python."""

    def through_torch_ops(*arguments: Any) -> None:
        pytest.fail("the call went through torch.ops")

    monkeypatch.setattr(convolutions, "_by_torch_ops", through_torch_ops)


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize(
    "name", [name for name, (*_, kwargs) in PROBLEMS.items() if kwargs.get("padding") in WORDS]
)
def test_padding_in_words_takes_the_direct_entry(name: str, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device)
    ours, theirs = functions(name)
    assert torch.equal(ours(x, w, b, **kwargs), theirs(x, w, b, **kwargs))


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_a_default_device_leaves_the_direct_entry(name: str, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device)
    ours, theirs = functions(name)
    with torch.device("meta"):
        assert torch.equal(ours(x, w, b, **kwargs), theirs(x, w, b, **kwargs))


def test_modes_see_the_call_beside_a_default_device(device: torch.device, spy: Any) -> None:
    x, w, _, _ = make_inputs("plain", device)
    with torch.device("meta"), spy:
        ops.conv2d(x, w)
    assert torch.ops.convtime.conv2d in spy.seen


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_inference_mode(name: str, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device)
    w.requires_grad_()
    ours, theirs = functions(name)
    with torch.inference_mode():
        actual = ours(x, w, b, **kwargs)
        assert actual.is_inference()
        assert torch.equal(actual, theirs(x, w, b, **kwargs))


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("op", OPS)
def test_compiles_without_graph_breaks_and_with_dynamic_shapes(
    op: str, device: torch.device
) -> None:
    function = getattr(ops, op)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = function(x, w, padding=1).relu()
        return output

    compiled = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=True)
    spatial = int(op[-2])
    w = torch.randn(4, 4, *[3] * spatial, device=device, requires_grad=True)
    for size in (8, 11):
        x = torch.randn(2, 4, *range(size, size + spatial), device=device)
        actual, expected = compiled(x, w), fn(x, w)
        assert torch.equal(actual, expected)
        (ours,), (theirs,) = (torch.autograd.grad(result.sum(), w) for result in (actual, expected))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_gradients_alone_compile(name: str, device: torch.device) -> None:
    x, w, _, kwargs = make_inputs(name, device)
    ours, theirs = functions(name)
    of_input, of_weight = (
        getattr(ops, f"{ours.__name__}_{operand}") for operand in ("input", "weight")
    )
    grad = torch.randn_like(theirs(x, w, **kwargs))

    def fn(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return of_input(x.shape, w, grad, **kwargs), of_weight(x, w.shape, grad, **kwargs)

    compiled = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=True)
    for actual, expected in zip(compiled(x, w, grad), fn(x, w, grad), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_compiled_autograd_traces_the_gradients(name: str, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device)
    assert b is not None
    function = functions(name)[0]
    expected, actual = ([tensor.clone().requires_grad_() for tensor in (x, w, b)] for _ in range(2))
    function(*expected, **kwargs).square().sum().backward()
    loss = function(*actual, **kwargs).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_numbers_may_be_numpys(name: str, device: torch.device) -> None:
    x, w, b, _ = make_inputs(name, device)
    ours, theirs = functions(name)
    actual = ours(x, w, b, stride=np.int64(2), padding=[np.int32(1)] * (w.dim() - 2))
    assert torch.equal(actual, theirs(x, w, b, stride=2, padding=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_autocast_is_pytorchs(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device)
    with torch.autocast(device.type, dtype=dtype):
        actual, expected = (function(x, w, b, **kwargs) for function in functions(name))
    assert actual.dtype == expected.dtype == dtype
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(
    ("x", "w", "kwargs"),
    [
        (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), {"dilation": 0}),
        (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 0, 3), {}),
        (
            torch.ones(1, 2, 5, 5, dtype=torch.cfloat),
            torch.ones(3, 2, 3, 3, dtype=torch.cfloat),
            {},
        ),
        (torch.ones(1, 2, 5, 5).bool(), torch.ones(3, 2, 3, 3).bool(), {}),
        (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), {"stride": 0}),
        (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), {"padding": -1}),
        (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 6, 3), {}),
    ],
)
def test_the_fake_refuses_what_the_op_refuses(x: Any, w: Any, kwargs: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError):
        ops.conv2d(x, w, **kwargs)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises(RuntimeError):
        ops.conv2d(mode.from_tensor(x), mode.from_tensor(w), **kwargs)


def test_an_empty_batch_takes_any_output_padding(device: torch.device) -> None:
    x, w = torch.ones(0, 3, 4, 4, device=device), torch.ones(3, 2, 3, 3, device=device)
    assert ops.conv_transpose2d(x, w, output_padding=3).shape == (0, 2, 9, 9)
    mode = FakeTensorMode()
    fake_x, fake_w = mode.from_tensor(x), mode.from_tensor(w)

    def fake_shape(function: Callable[..., torch.Tensor]) -> torch.Size | None:
        try:
            return function(fake_x, fake_w, output_padding=3).shape
        except RuntimeError:  # torch 2.15's own fake refuses it
            return None

    assert fake_shape(ops.conv_transpose2d) == fake_shape(F.conv_transpose2d)
    grad = torch.ones(0, 2, 9, 9, device=device)
    for tensors in ((grad, x, w), (mode.from_tensor(grad), fake_x, fake_w)):
        gradients = torch.ops.convtime.convolution_backward(
            *tensors, (1, 1), (0, 0), (1, 1), True, (3, 3), 1, (True, True, False)
        )
        assert [gradient.shape for gradient in gradients[:2]] == [x.shape, w.shape]


@pytest.mark.parametrize("transposed", [False, True])
def test_the_fake_looks_at_output_padding_where_the_op_does(
    transposed: bool, device: torch.device
) -> None:
    x, w = torch.ones(2, 4, 8, 8, device=device), torch.ones(4, 4, 3, 3, device=device)
    size = 13 if transposed else 6
    grad = torch.ones(2, 4, size, size, device=device)
    mode = FakeTensorMode()
    for tensors in ((grad, x, w), tuple(map(mode.from_tensor, (grad, x, w)))):

        def call(tensors: tuple[torch.Tensor, ...] = tensors) -> list[torch.Size]:
            arguments = ((1, 1), (0, 0), (1, 1), transposed, (3, 3), 1, (True, True, False))
            gradients = torch.ops.convtime.convolution_backward(*tensors, *arguments)
            return [gradient.shape for gradient in gradients[:2]]

        if transposed:
            with pytest.raises(RuntimeError, match="output_padding must be smaller than stride or"):
                call()
        else:
            assert call() == [x.shape, w.shape]


X, W, B = torch.ones(2, 4, 8, 8), torch.ones(6, 4, 3, 3), torch.ones(6)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X[0, 0], W), {}, r"input must have shape \(N, C, H, W\) or \(C, H, W\), got \[8, 8\]"),
        ((X, W[0]), {}, r"weight must have shape \(K, C / groups, R, S\), got \[4, 3, 3\]"),
        (
            (X[:, :3], W),
            {},
            r"input must have dimension 1 of weight times groups channels \(4 \* 1\), got 3",
        ),
        ((X.int(), W.int()), {}, "dtype must be Half, .* got Int"),
        ((X.to(torch.cfloat), W.to(torch.cfloat)), {}, "dtype must be Half, .* got ComplexFloat"),
        ((X, None), {}, "weight must be a tensor, got NoneType"),
        ((X, W[0, 0, 0]), {"padding": "same"}, "weight must have shape"),
        ((X, W), {"stride": None}, "stride must be one or two whole numbers, got None"),
        (
            (X, W),
            {"stride": b"\1\2"},
            r"stride must be one or two whole numbers, got b'\\x01\\x02'",
        ),
        ((X, W), {"padding": bytearray(2)}, "padding must be one or two whole numbers, got bytea"),
        ((X, W), {"dilation": 1.5}, "dilation must be one or two whole numbers, got 1.5"),
        ((X, W.half()), {}, "same dtype, got Float and Half"),
        ((X, W, B.half()), {}, r"bias must have the input's dtype \(Float\), got Half"),
        ((X, W, B[:5]), {}, r"bias must have shape \(6\).* got \[5\]"),
        ((X, W[:, :, :0]), {}, "a kernel of at least 1 x 1"),
        ((X, W[:0]), {}, "at least one output channel"),
        ((X, W), {"groups": 0}, "groups must be at least 1, got 0"),
        ((X, W[:, :1]), {"groups": 4}, r"a multiple of groups \(4\), got 6"),
        ((X, W), {"stride": 0}, r"stride must be between 1 and 2147483647, got \[0\]"),
        ((X, W), {"stride": (1, -1)}, r"stride must be between 1 .* got \[1, -1\]"),
        ((X, W), {"padding": -1}, "padding must be between 0"),
        ((X, W), {"padding": 2**40}, "padding must be between 0 and 2147483647"),
        ((X, W), {"dilation": 0}, "dilation must be between 1"),
        ((X, W), {"stride": (1, 1, 1)}, r"stride must be one or two numbers, got \[1, 1, 1\]"),
        (
            (X, W),
            {"dilation": 4},
            "must not be larger than the padded input, got .*9 .* 8 in height",
        ),
        ((X, W), {"padding": "full"}, "padding must be a number, 'same' or 'valid', got 'full'"),
        ((X, W), {"padding": "same", "stride": 2}, r"'same' needs a stride of 1, got \(2, 2\)"),
    ],
)
def test_bad_input_is_one_clear_error(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str, device: torch.device
) -> None:
    with pytest.raises((RuntimeError, TypeError), match=message):
        ops.conv2d(*(tensor if tensor is None else tensor.to(device) for tensor in args), **kwargs)
    # and the process, with its GPU context, goes on
    assert torch.equal(ops.conv2d(X.to(device), W.to(device)), F.conv2d(X.to(device), W.to(device)))


V, U = torch.ones(2, 4, 8), torch.ones(2, 4, 5, 5, 5)


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "message"),
    [
        (
            "conv1d",
            (V[0, 0], W[..., 0]),
            {},
            r"input must have shape \(N, C, L\) or \(C, L\), got \[8\]",
        ),
        ("conv1d", (V, W), {}, r"weight must have shape \(K, C / groups, S\), got \[6, 4, 3, 3\]"),
        ("conv1d", (V, W[..., 0]), {"stride": (1, 1)}, r"stride must be one number, got \[1, 1\]"),
        ("conv1d", (V, W[..., 0]), {"stride": 1.5}, "stride must be one whole number, got 1.5"),
        ("conv1d", (V, W[..., 0]), {"dilation": 4}, "got .*9 .* 8 in length"),
        (
            "conv3d",
            (U[0, 0], U),
            {},
            r"input must have shape \(N, C, D, H, W\) or \(C, D, H, W\), got",
        ),
        ("conv3d", (U, W), {}, r"weight must have shape \(K, C / groups, T, R, S\), got"),
        (
            "conv3d",
            (U, U),
            {"padding": (0, 0)},
            r"padding must be one or three numbers, got \[0, 0\]",
        ),
        ("conv3d", (U, U), {"dilation": (2, 1, 1)}, "got .*9 .* 5 in depth"),
        ("conv_transpose2d", (X, W[0]), {}, r"weight must have shape \(C, K / groups, R, S\), got"),
        ("conv_transpose2d", (X, W), {}, r"as many channels as dimension 0 of weight \(6\), got 4"),
        (
            "conv_transpose2d",
            (X, W[:4]),
            {"groups": 3},
            r"input channels .* a multiple of groups \(3\), got 4",
        ),
        ("conv_transpose2d", (X, W[:4], B), {}, r"bias must have shape \(4\).* got \[6\]"),
        ("conv_transpose2d", (X, W[:4, :0]), {}, "at least one output channel"),
        (
            "conv_transpose2d",
            (X, W[:4]),
            {"padding": 6},
            "padding .* got 6 for an output of 10 in height",
        ),
        (
            "conv_transpose2d",
            (X, W[:4]),
            {"output_padding": (0, 1)},
            r"smaller than stride or dilation \(1\), got 1 in width",
        ),
        (
            "conv_transpose2d",
            (X, W[:4]),
            {"output_padding": -1},
            "output_padding must be between 0 and",
        ),
        (
            "conv_transpose2d",
            (X, W[:4]),
            {"padding": "same"},
            "padding must be one or two whole numbers, got 'same'",
        ),
        (
            "conv_transpose3d",
            (U, U[:, :, 0]),
            {},
            r"weight must have shape \(C, K / groups, T, R, S\), got",
        ),
    ],
)
def test_bad_input_of_other_ops_is_one_clear_error(
    op: str,
    args: tuple[torch.Tensor, ...],
    kwargs: dict[str, Any],
    message: str,
    device: torch.device,
) -> None:
    with pytest.raises((RuntimeError, TypeError), match=f"{op}: .*{message}"):
        getattr(ops, op)(*(tensor.to(device) for tensor in args), **kwargs)


def test_an_output_of_which_nothing_is_left_is_pytorchs(device: torch.device) -> None:
    x, w = torch.ones(2, 4, 1, 2, device=device), torch.ones(4, 3, 1, 3, device=device)
    actual = ops.conv_transpose2d(x, w, padding=(0, 2))
    expected = F.conv_transpose2d(x, w, padding=(0, 2))
    assert actual.shape == expected.shape == (2, 3, 1, 0)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("fastest", "policy must be 'heuristic', 'benchmark' or the tag .* got 'fastest'"),
        ("eng38_k2", "policy must be 'heuristic', 'benchmark' or the tag .* got 'eng38_k2'"),
        (
            "ConvBwdData_eng5",
            "policy 'ConvBwdData_eng5' names an engine of ConvBwdData, but this call computes "
            "ConvFwd",
        ),
    ],
)
def test_bad_policies_are_one_clear_error(policy: str, message: str, device: torch.device) -> None:
    with pytest.raises(RuntimeError, match=message):
        ops.conv2d(X.to(device), W.to(device), policy=policy)


def test_a_transposed_convolution_is_a_gradient_to_cudnn(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="of ConvFwd, but this call computes ConvBwdData"):
        ops.conv_transpose2d(X.to(device), W[:4].to(device), policy="ConvFwd_eng0")
    grad = torch.ones(2, 4, 10, 10, device=device)
    with pytest.raises(RuntimeError, match="of ConvBwdData, but this call computes ConvFwd"):
        ops.conv_transpose2d_input(X.shape, W[:4].to(device), grad, policy="ConvBwdData_eng0")


def test_an_engine_needs_cudnn() -> None:
    with pytest.raises(RuntimeError, match="names cuDNN's engine 5, but PyTorch computes this"):
        ops.conv2d(X, W, policy="eng5")


GRAD = torch.ones(2, 6, 6, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda device: ops.conv2d_input(X.shape, W.to(device), GRAD[:, :, 1:].to(device)),
            r"grad_output must have the output's shape \[2, 6, 6, 6\], got \[2, 6, 5, 6\]",
        ),
        (
            lambda device: ops.conv2d_input(X.shape[1:], W.to(device), GRAD.to(device)),
            r"conv2d_input: input_size must be four numbers, got \(4, 8, 8\)",
        ),
        (
            lambda device: ops.conv2d_weight(X.to(device), (6, 4), GRAD.to(device)),
            r"conv2d_weight: weight_size must be four numbers, got \(6, 4\)",
        ),
        (
            lambda device: ops.conv2d_weight(
                X.to(device), W.shape, GRAD.to(device), padding="full"
            ),
            "conv2d_weight: padding must be a number, 'same' or 'valid', got 'full'",
        ),
        (
            lambda device: ops.conv2d_weight(X.to(device), W.shape, GRAD.to(device).half()),
            "input and grad_output must have the same dtype|input and weight must have the same",
        ),
        (
            lambda device: ops.conv2d_weight(
                X.to(device), W.shape, GRAD.to(device), policy="ConvBwdData_eng0"
            ),
            "names an engine of ConvBwdData, but this call computes ConvBwdFilter",
        ),
        (
            lambda device: ops.conv2d_bias(GRAD[0]),
            r"must have shape \(N, K, P, Q\), got \[6, 6, 6\]",
        ),
        (lambda device: ops.conv2d_bias(None), "grad_output must be a tensor, got NoneType"),
    ],
)
def test_bad_gradients_are_one_clear_error(call: Any, message: str, device: torch.device) -> None:
    with pytest.raises((RuntimeError, TypeError), match=message):
        call(device)


def test_outputs_larger_than_the_machine_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"the output would take .* bytes and this machine has"):
        ops.conv2d(X, W, padding=2_000_000_000)


@pytest.mark.cuda
def test_outputs_larger_than_the_gpu_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"out of memory|too large|overflow|Overflow"):
        ops.conv2d(X.cuda(), W.cuda(), padding=1_000_000)
    torch.cuda.synchronize()
    assert torch.equal(ops.conv2d(X.cuda(), W.cuda()), F.conv2d(X.cuda(), W.cuda()))


@pytest.mark.cuda
def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="input and weight must be on the same device, got"):
        ops.conv2d(X.cuda(), W)
    with pytest.raises(RuntimeError, match="bias must be on the input's device"):
        ops.conv2d(X.cuda(), W.cuda(), B)
