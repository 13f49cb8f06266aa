from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from convtime import ops

# name: input shape, weight shape, arguments
PROBLEMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 9, 11), (4, 3, 3, 3), {}),
    "padded": ((2, 8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "strided": ((2, 8, 17, 15), (16, 8, 3, 5), {"stride": (2, 3), "padding": (1, 2)}),
    "dilated": ((2, 8, 17, 15), (16, 8, 3, 3), {"dilation": (2, 1), "padding": (2, 1)}),
    "pointwise": ((2, 64, 14, 14), (32, 64, 1, 1), {}),
    "grouped": ((2, 8, 9, 9), (12, 2, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise": ((2, 32, 14, 14), (32, 1, 3, 3), {"groups": 32, "padding": 1}),
    "one image": ((1, 16, 14, 14), (16, 16, 3, 3), {"padding": 1}),
    "one channel": ((3, 1, 28, 28), (8, 1, 5, 5), {"padding": 2}),
    "kernel as large as the input": ((2, 4, 5, 5), (6, 4, 5, 5), {}),
    "unbatched": ((8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "empty batch": ((0, 8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "padding larger than the kernel": ((1, 2, 4, 4), (3, 2, 3, 3), {"padding": 7}),
    "padding same": ((2, 4, 9, 9), (4, 4, 3, 5), {"padding": "same"}),
    "padding same, even kernel": ((2, 4, 9, 9), (4, 4, 4, 2), {"padding": "same", "dilation": 3}),
    "padding valid": ((2, 4, 9, 9), (4, 4, 4, 2), {"padding": "valid"}),
    "one number in a list": ((2, 4, 9, 9), (4, 4, 3, 3), {"padding": [1], "stride": [2]}),
}


def make_inputs(
    name: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, Any]]:
    x_shape, w_shape, kwargs = PROBLEMS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(x_shape, generator=generator).to(device, dtype)
    w = torch.randn(w_shape, generator=generator).to(device, dtype)
    b = torch.randn(w_shape[0], generator=generator).to(device, dtype) if bias else None
    if channels_last:
        w = w.contiguous(memory_format=torch.channels_last)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
    return x, w, b, kwargs


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", PROBLEMS)
def test_conv2d_is_pytorchs_to_the_bit(
    name: str, dtype: torch.dtype, bias: bool, channels_last: bool, device: torch.device
) -> None:
    x, w, b, kwargs = make_inputs(name, device, dtype, channels_last, bias)
    expected = F.conv2d(x, w, b, **kwargs)
    actual = ops.conv2d(x, w, b, **kwargs)
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


@pytest.mark.parametrize(
    "name", ["strided", "grouped", "depthwise", "unbatched", "one number in a list"]
)
@pytest.mark.parametrize("bias", [False, True])
def test_opcheck(name: str, bias: bool, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device, bias=bias)
    # The op itself takes sequences; ops.conv2d is what takes single numbers.
    kwargs = {k: [v, v] if k == "padding" and isinstance(v, int) else v for k, v in kwargs.items()}
    torch.library.opcheck(torch.ops.convtime.conv2d.default, (x, w, b), kwargs)
    leaves = [t.requires_grad_() if t is not None else None for t in (x, w, b)]
    torch.library.opcheck(torch.ops.convtime.conv2d.default, tuple(leaves), kwargs)


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
    expected, actual = F.conv2d(*leaves, **kwargs), ops.conv2d(*leaves, **kwargs)
    grad = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(actual, leaves, grad),
        torch.autograd.grad(expected, leaves, grad),
        strict=True,
    ):
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("needs_grad", list(itertools.product([False, True], repeat=3)))
def test_only_the_gradients_that_are_asked_for(
    needs_grad: tuple[bool, ...], device: torch.device
) -> None:
    x, w, b, kwargs = make_inputs("strided", device)
    tensors = [t.requires_grad_(n) for t, n in zip((x, w, b), needs_grad, strict=True)]  # type: ignore[union-attr]
    actual = ops.conv2d(*tensors, **kwargs)
    assert actual.requires_grad == any(needs_grad)
    if any(needs_grad):
        actual.backward(torch.ones_like(actual))
    assert [t.grad is not None for t in tensors] == list(needs_grad)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("grad_layout", ["contiguous", "channels_last", "expanded", "misaligned"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_take_any_layout_of_the_outputs_gradient(
    grad_layout: str, channels_last: bool, device: torch.device
) -> None:
    x, w, _, kwargs = make_inputs("grouped", device, channels_last=channels_last)
    leaves = [x.requires_grad_(), w.requires_grad_()]
    expected, actual = F.conv2d(*leaves, **kwargs), ops.conv2d(*leaves, **kwargs)
    grad = {
        "contiguous": torch.randn_like(expected).contiguous(),
        "channels_last": torch.randn_like(expected).to(memory_format=torch.channels_last),
        "expanded": torch.randn((), device=device).expand(expected.shape),
        "misaligned": torch.randn(1 + expected.numel(), device=device)[1:].view(expected.shape),
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
    "name", [n for n, (x, _, kwargs) in PROBLEMS.items() if len(x) == 4 and x[0] > 0]
)
def test_each_gradient_alone_is_pytorchs(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    x, w, b, kwargs = make_inputs(name, device, dtype)
    assert b is not None
    leaves = [t.requires_grad_() for t in (x, w, b)]
    output = F.conv2d(*leaves, **kwargs)
    grad = torch.randn_like(output)
    expected = torch.autograd.grad(output, leaves, grad)
    actual = (
        ops.conv2d_input(x.shape, w, grad, **kwargs),
        ops.conv2d_weight(x, w.shape, grad, **kwargs),
        ops.conv2d_bias(grad),
    )
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)  # other kernels may run
    if not isinstance(kwargs.get("padding", 0), str):  # which torch.nn.grad does not take
        theirs = torch.nn.grad.conv2d_input(x.shape, w, grad, **kwargs)
        assert torch.equal(actual[0], theirs)
        theirs = torch.nn.grad.conv2d_weight(x, w.shape, grad, **kwargs)
        assert torch.equal(actual[1], theirs)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("name", ["strided", "grouped", "unbatched"])
def test_double_backward_is_pytorchs_to_the_bit(name: str, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs(name, device)
    assert b is not None
    leaves = [t.requires_grad_() for t in (x, w, b)]

    def second_order(conv2d: Any) -> list[torch.Tensor]:
        output = conv2d(*leaves, **kwargs)
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    for ours, theirs in zip(second_order(ops.conv2d), second_order(F.conv2d), strict=True):
        assert torch.equal(ours, theirs)


def test_gradgradcheck(device: torch.device) -> None:
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64, device=device, requires_grad=True)
    w = torch.randn(4, 2, 3, 2, dtype=torch.float64, device=device, requires_grad=True)
    b = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)

    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        return ops.conv2d(*tensors, stride=2, padding=1, groups=2)

    assert torch.autograd.gradcheck(fn, (x, w, b), nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(fn, (x, w, b), nondet_tol=1e-12)


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)])
def test_opcheck_of_backward(mask: tuple[bool, bool, bool], device: torch.device) -> None:
    x, w, _, kwargs = make_inputs("strided", device)
    grad = torch.randn_like(F.conv2d(x, w, **kwargs))
    op = torch.ops.convtime.conv2d_backward.default
    kwargs = {"output_mask": mask, **kwargs}
    torch.library.opcheck(op, (grad, x, w), kwargs)
    leaves = tuple(t.requires_grad_() for t in (grad, x, w))
    # Not test_aot_dispatch_dynamic: torch 2.11's double backward takes no symbolic sizes.
    tests = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_static",
    )
    torch.library.opcheck(op, leaves, kwargs, test_utils=tests)


def test_func_grad_is_pytorchs(device: torch.device) -> None:
    x, w, b, kwargs = make_inputs("strided", device, torch.float64)

    def loss(w: torch.Tensor, conv2d: Any) -> torch.Tensor:
        output: torch.Tensor = conv2d(x, w, b, **kwargs)
        return output.square().sum()

    torch.testing.assert_close(
        torch.func.grad(loss)(w, ops.conv2d), torch.func.grad(loss)(w, F.conv2d)
    )


def test_forward_mode_is_refused(device: torch.device) -> None:
    x, w, _, _ = make_inputs("plain", device)
    with pytest.raises(NotImplementedError, match="forward-mode differentiation is not"):
        torch.func.jvp(lambda x: ops.conv2d(x, w), (x,), (x,))


def test_fx_records_the_op(device: torch.device) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return ops.conv2d(x, w, padding=1)

    x, w, _, _ = make_inputs("plain", device)
    traced = torch.fx.symbolic_trace(Net())
    assert "convtime.conv2d" in traced.code
    assert torch.equal(traced(x, w), F.conv2d(x, w, padding=1))


def test_torch_function_overrides_see_the_call(device: torch.device) -> None:
    class Tagged(torch.Tensor):
        pass

    x, w, _, _ = make_inputs("plain", device)
    assert isinstance(ops.conv2d(x.as_subclass(Tagged), w), Tagged)
    seen = []

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Spy():
        ops.conv2d(x, w)
    assert torch.ops.convtime.conv2d in seen


def test_inference_mode(device: torch.device) -> None:
    x, w, b, kwargs = make_inputs("strided", device)
    w.requires_grad_()
    with torch.inference_mode():
        actual = ops.conv2d(x, w, b, **kwargs)
        assert actual.is_inference()
        assert torch.equal(actual, F.conv2d(x, w, b, **kwargs))


def test_compiles_without_graph_breaks_and_with_dynamic_shapes(device: torch.device) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.conv2d(x, w, padding=1).relu()

    compiled = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=True)
    w = torch.randn(8, 4, 3, 3, device=device, requires_grad=True)
    for size in (8, 11):
        x = torch.randn(2, 4, size, size + 1, device=device)
        actual, expected = compiled(x, w), fn(x, w)
        assert torch.equal(actual, expected)
        (ours,), (theirs,) = (torch.autograd.grad(y.sum(), w) for y in (actual, expected))
        torch.testing.assert_close(ours, theirs)


def test_gradients_alone_compile(device: torch.device) -> None:
    x, w, _, kwargs = make_inputs("strided", device)
    grad = torch.randn_like(F.conv2d(x, w, **kwargs))

    def fn(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            ops.conv2d_input(x.shape, w, grad, **kwargs),
            ops.conv2d_weight(x, w.shape, grad, **kwargs),
            ops.conv2d_bias(grad),
        )

    compiled = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=True)
    for ours, theirs in zip(compiled(x, w, grad), fn(x, w, grad), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_compiled_autograd_traces_the_gradients(device: torch.device) -> None:
    x, w, b, kwargs = make_inputs("strided", device)
    assert b is not None
    expected, actual = ([t.clone().requires_grad_() for t in (x, w, b)] for _ in range(2))
    ops.conv2d(*expected, **kwargs).square().sum().backward()
    loss = ops.conv2d(*actual, **kwargs).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_numbers_may_be_numpys(device: torch.device) -> None:
    x, w, b, _ = make_inputs("strided", device)
    actual = ops.conv2d(x, w, b, stride=np.int64(2), padding=[np.int32(1), 2])
    assert torch.equal(actual, F.conv2d(x, w, b, stride=2, padding=[1, 2]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_pytorchs(dtype: torch.dtype, device: torch.device) -> None:
    x, w, b, kwargs = make_inputs("strided", device)
    with torch.autocast(device.type, dtype=dtype):
        actual, expected = ops.conv2d(x, w, b, **kwargs), F.conv2d(x, w, b, **kwargs)
    assert actual.dtype == expected.dtype == dtype
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(
    ("x", "w", "kwargs"),
    [
        (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), {"dilation": 0}),
        (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 0, 3), {}),
        (torch.ones(1, 2, 5, 5).cfloat(), torch.ones(3, 2, 3, 3).cfloat(), {}),
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
        ((X.int(), W.int()), {}, "must be one of Half, BFloat16, Float, Double, got Int"),
        ((X.cfloat(), W.cfloat()), {}, "must be one of Half, .* got ComplexFloat"),
        ((X, None), {}, "weight must be a tensor, got NoneType"),
        ((X, W[0, 0, 0]), {"padding": "same"}, "weight must have shape"),
        ((X, W), {"stride": None}, "stride must be one or two whole numbers, got None"),
        ((X, W), {"dilation": 1.5}, "dilation must be one or two whole numbers, got 1.5"),
        ((X, W.half()), {}, "same dtype, got Float and Half"),
        ((X, W, B.half()), {}, r"bias must have the input's dtype \(Float\), got Half"),
        ((X, W, B[:5]), {}, r"bias must have shape \(6\).* got \[5\]"),
        ((X, W[:, :, :0]), {}, "a kernel of at least 1 x 1"),
        ((X, W[:0]), {}, "at least one output channel"),
        ((X, W), {"groups": 0}, "groups must be at least 1, got 0"),
        ((X, W[:, :1]), {"groups": 4}, r"a multiple of groups \(4\), got 6"),
        ((X, W), {"stride": 0}, r"stride must lie between 1 and 2147483647, got \[0\]"),
        ((X, W), {"stride": (1, -1)}, r"stride must lie between 1 .* got \[1, -1\]"),
        ((X, W), {"padding": -1}, "padding must lie between 0"),
        ((X, W), {"padding": 2**40}, "padding must lie between 0 and 2147483647"),
        ((X, W), {"dilation": 0}, "dilation must lie between 1"),
        ((X, W), {"stride": (1, 1, 1)}, "stride must be one or two numbers"),
        (
            (X, W),
            {"dilation": 4},
            "must not be larger than the padded input, got 9 .* against 8 in height",
        ),
        ((X, W), {"padding": "full"}, "padding must be a number, 'same' or 'valid', got 'full'"),
        ((X, W), {"padding": "same", "stride": 2}, r"'same' needs a stride of 1, got \(2, 2\)"),
    ],
)
def test_bad_input_is_one_clear_error(
    args: tuple[torch.Tensor, ...], kwargs: dict[str, Any], message: str, device: torch.device
) -> None:
    with pytest.raises(RuntimeError, match=message):
        ops.conv2d(*(t if t is None else t.to(device) for t in args), **kwargs)
    # and the process, with its GPU context, goes on
    assert torch.equal(ops.conv2d(X.to(device), W.to(device)), F.conv2d(X.to(device), W.to(device)))


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


def test_an_engine_needs_cudnn() -> None:
    with pytest.raises(RuntimeError, match="names cuDNN's engine 5, but PyTorch computes this"):
        ops.conv2d(X, W, policy="eng5")


GRAD = torch.ones(2, 6, 6, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda d: ops.conv2d_input(X.shape, W.to(d), GRAD[:, :, 1:].to(d)),
            r"grad_output must have the output's shape \[2, 6, 6, 6\], got \[2, 6, 5, 6\]",
        ),
        (
            lambda d: ops.conv2d_input(X.shape[1:], W.to(d), GRAD.to(d)),
            r"conv2d_input: input_size must be four numbers, got \(4, 8, 8\)",
        ),
        (
            lambda d: ops.conv2d_weight(X.to(d), (6, 4), GRAD.to(d)),
            r"conv2d_weight: weight_size must be four numbers, got \(6, 4\)",
        ),
        (
            lambda d: ops.conv2d_weight(X.to(d), W.shape, GRAD.to(d), padding="full"),
            "conv2d_weight: padding must be a number, 'same' or 'valid', got 'full'",
        ),
        (
            lambda d: ops.conv2d_weight(X.to(d), W.shape, GRAD.to(d).half()),
            "input and grad_output must have the same dtype|input and weight must have the same",
        ),
        (
            lambda d: ops.conv2d_weight(X.to(d), W.shape, GRAD.to(d), policy="ConvBwdData_eng0"),
            "names an engine of ConvBwdData, but this call computes ConvBwdFilter",
        ),
        (lambda d: ops.conv2d_bias(GRAD[0]), r"must have shape \(N, K, P, Q\), got \[6, 6, 6\]"),
        (lambda d: ops.conv2d_bias(None), "grad_output must be a tensor, got NoneType"),  # type: ignore[arg-type]
    ],
)
def test_bad_gradients_are_one_clear_error(call: Any, message: str, device: torch.device) -> None:
    with pytest.raises(RuntimeError, match=message):
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
