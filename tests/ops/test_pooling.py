"""relu_max_pool2d against PyTorch's relu and max_pool2d."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import convtime.nn
from convtime import ops
from tests.helpers.op_calls import LAYOUTS, few_values, kept_by, make_tensor
from tests.helpers.op_examples import AMOUNTS, for_all

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
relu_max_pool2d: Any = ops.relu_max_pool2d  # whose type depends on return_indices
VECTORISED = {"3×3/2": (3, 2, 1), "2×2/2": (2, 2, 0)}  # kernel size, stride, padding


def pytorchs(x: torch.Tensor, *numbers: Any, **named: Any) -> Any:
    return F.max_pool2d(F.relu(x), *numbers, **named)


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def has_empty_window(size: int, kernel: int, stride: int, padding: int, dilation: int) -> bool:
    """Whether a window of an axis can have padding alone, where PyTorch's index is of nothing."""
    return any(
        all(not 0 <= start + i * dilation < size for i in range(kernel))
        for start in range(-padding, size, stride)
    )


def assert_matches(x: torch.Tensor, **window: Any) -> None:
    """Output, indices and gradient are PyTorch's; sums may be rounded otherwise."""
    output, indices = relu_max_pool2d(x, **window, return_indices=True)
    expected, expected_indices = pytorchs(x, **window, return_indices=True)
    assert_equal(output, expected)
    assert_equal(relu_max_pool2d(x, **window), expected)
    # The indices may have another stride along an axis of size 1, where it is of no concern.
    assert_equal(indices.as_strided(indices.shape, expected_indices.stride()), expected_indices)
    strides = zip(indices.shape, indices.stride(), expected_indices.stride(), strict=True)
    assert all(size == 1 or actual == right for size, actual, right in strides)
    assert not indices.requires_grad
    grad = few_values(output.shape, x.device, x.dtype, seed=1)
    results: list[torch.Tensor] = []
    for function in (relu_max_pool2d, pytorchs):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        results += torch.autograd.grad(function(leaf, **window), leaf, grad)
    ours, theirs = results
    if x.stride() == ours.stride():  # of other strides, PyTorch's ReLU may keep them
        assert theirs.stride() == ours.stride()
    torch.testing.assert_close(
        ours, theirs, rtol=1e-2 if x.dtype.itemsize == 2 else 1e-5, atol=1e-5
    )


def fits(size: tuple[int, ...], window: dict[str, Any]) -> bool:
    """Whether PyTorch takes such windows of planes of that size, and none has padding alone."""
    kernel, padding, dilation = (window[name] for name in ("kernel_size", "padding", "dilation"))
    stride = window["stride"] or kernel
    strides = (stride, stride) if isinstance(stride, int) else stride
    axes = list(zip(size, kernel, strides, padding, dilation, strict=True))
    return all(
        length + 2 * pad >= gap * (width - 1) + 1 for length, width, _, pad, gap in axes
    ) and not any(has_empty_window(*axis) for axis in axes)


# A shape, a window, a dtype, and whether the tensor is in channels-last and has special values.
Case = tuple[tuple[int, ...], dict[str, Any], torch.dtype, bool, bool]


def check(case: Case, device: torch.device | str) -> None:
    shape, window, dtype, channels_last, specials = case
    is_last = channels_last and len(shape) == 4
    assert_matches(few_values(shape, device, dtype, is_last, specials), **window)


def draw_case(
    draw: st.DrawFn, shape: tuple[int, ...], kernels: list[tuple[int, int]], strides: list[Any]
) -> Case:
    kernel = draw(st.sampled_from(kernels))
    window = {
        "kernel_size": kernel,
        "stride": draw(st.sampled_from(strides)),
        "padding": tuple(draw(st.integers(0, size // 2)) for size in kernel),
        "dilation": draw(st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 1), (2, 2), (3, 2)])),
        "ceil_mode": draw(st.booleans()),
    }
    if not fits(shape[-2:], window):
        window |= {"kernel_size": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    dtype, channels_last = draw(st.sampled_from(DTYPES)), draw(st.booleans())
    return shape, window, dtype, channels_last, draw(st.sampled_from([True, False, False]))


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    shape: tuple[int, ...] = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 3, 8, 16, 24])),
        draw(st.sampled_from([5, 7, 8, 13, 16, 33, 1])),
        draw(st.sampled_from([6, 8, 11, 16, 24, 40, 1])),
    )
    kernels = [(2, 2), (2, 2), (3, 3), (3, 3), (2, 3), (5, 1), (4, 7), (1, 1)]
    shape = shape[draw(st.sampled_from([0, 0, 0, 1])) :]
    return draw_case(draw, shape, kernels, [None, 1, 2, 2, 2, (3, 1)])


@st.composite
def vectorised_cases(draw: st.DrawFn) -> Case:
    """The windows that have kernels of their own, of rows that fill packs of 16 bytes or do not."""
    kernel, stride, padding = draw(st.sampled_from(list(VECTORISED.values())))
    sizes = [(16, 16), (17, 24), (1, 8), (2, 8), (3, 40), (23, 8), (9, 15), (12, 28), (56, 112)]
    height, width = draw(st.sampled_from(sizes))
    window = {"kernel_size": kernel, "stride": stride, "padding": padding}
    window["ceil_mode"] = draw(st.booleans())
    shape = (2, 16, max(height, kernel - 2 * padding), width)
    return (
        shape, window, draw(st.sampled_from(DTYPES)), draw(st.booleans()), draw(st.booleans())
    )  # fmt: skip


@st.composite
def large_cases(draw: st.DrawFn) -> Case:
    """Planes of several tiles, rows too long for one, and many small planes in a tile.

    Channels are multiples of 2, 4, 8 and 16 bytes, some of them in tensors that occupy the GPU with
    packs of that size.
    """
    some = {"tiles": [3, 8, 31, 62, 64, 68], "rows": [1, 3, 8, 193], "planes": [3, 6, 7, 16]}
    channels = {name: st.sampled_from(numbers) for name, numbers in some.items()}
    side, long = st.integers(50, 130), st.integers(1000, 9000)
    shape = draw(
        st.one_of(
            st.tuples(st.just(2), channels["tiles"], side, side),
            st.tuples(st.just(1), channels["rows"], st.integers(7, 20), long),
            st.tuples(st.integers(60, 300), channels["planes"], st.just(7), st.integers(7, 14)),
        )
    )
    kernels = [(2, 2), (3, 3), (3, 3), (5, 5), (7, 7), (2, 6), (7, 2), (3, 9)]
    return draw_case(draw, shape, kernels, [1, 2, 2, 3, (4, 1), (1, 6)])


@AMOUNTS
@pytest.mark.parametrize(("cases", "count"), [(small_cases, 80), (vectorised_cases, 30)])
def test_any_geometry_is_pytorchs(
    cases: Any, count: int, amount: int, device: torch.device
) -> None:
    for_all(cases(), lambda case: check(case, device), count * amount, device, 5 * amount)


def test_windows_of_more_than_a_byte_can_count_and_empty_batches(device: torch.device) -> None:
    x = few_values((1, 3, 140, 40), device, torch.float32, specials=True)
    for kernel in ((16, 8), (11, 12), (128, 1)):
        assert_matches(x, kernel_size=kernel, stride=5, padding=0)
    assert_matches(x[:0], kernel_size=3, stride=2, padding=1)


def test_windows_of_padding_alone_are_minus_infinity(device: torch.device) -> None:
    x = torch.ones(1, 1, 1, 1, device=device, requires_grad=True)
    window = {"kernel_size": 2, "padding": 1, "dilation": 5, "stride": 5, "ceil_mode": True}
    output = relu_max_pool2d(x, **window)
    assert_equal(output, pytorchs(x, **window))
    assert torch.equal(output.detach().cpu(), torch.full((1, 1, 1, 1), -math.inf))
    (gradient,) = torch.autograd.grad(output, x, torch.ones_like(output))
    assert torch.equal(gradient, torch.zeros_like(x))


def test_any_strides(device: torch.device) -> None:
    def rand(*shape: int) -> torch.Tensor:
        return few_values(shape, device, torch.float16)

    inputs = [
        rand(2, 4, 16, 24).transpose(2, 3),
        rand(2, 8, 16, 48)[:, ::2, :, ::2],
        rand(1, 4, 1, 16).expand(2, 4, 16, 16),
        *(rand(offset + 2 * 4 * 16 * 16)[offset:].view(2, 4, 16, 16) for offset in (1, 2, 3, 4)),
        rand(2, 40, 16, 16).to(memory_format=torch.channels_last)[:, 5:21],
    ]
    for x in inputs:
        for kernel, stride, padding in VECTORISED.values():
            assert_matches(x, kernel_size=np.int64(kernel), stride=[stride], padding=padding)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_outputs_gradient_may_have_any_layout(
    channels_last: bool, device: torch.device
) -> None:
    x = few_values((2, 8, 16, 16), device, channels_last=channels_last).requires_grad_()
    for layout in (*LAYOUTS, "expanded"):
        outputs = relu_max_pool2d(x, 3, 2, 1), pytorchs(x, 3, 2, 1)
        grad = make_tensor(outputs[0].shape, x.dtype, layout, device)
        ours, theirs = (torch.autograd.grad(output, x, grad)[0] for output in outputs)
        assert ours.stride() == theirs.stride(), layout
        torch.testing.assert_close(ours, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 1, 1, 2)])
def test_gradcheck(window: tuple[int, ...], device: torch.device) -> None:
    x = torch.randn(2, 2, 7, 8, device=device, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return relu_max_pool2d(x, *window)

    assert torch.autograd.gradcheck(fn, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fn, x, check_fwd_over_rev=True)


def test_what_is_kept_for_the_gradient_is_a_byte_an_output(device: torch.device) -> None:
    x = torch.randn(2, 8, 16, 16, device=device, requires_grad=True)
    output, kept = kept_by(lambda: relu_max_pool2d(x, 3, 2, 1))
    assert [tensor.nbytes for tensor in kept] == [output.numel()]


@pytest.mark.parametrize("in_dim", [0, 2, 4])
def test_vmap_is_pytorchs(in_dim: int, device: torch.device) -> None:
    x = torch.randn(3, 2, 4, 8, 9, device=device).movedim(0, in_dim)
    results: list[tuple[torch.Tensor, ...]] = []
    for function in (relu_max_pool2d, pytorchs):
        pool = partial(function, kernel_size=3, stride=2, padding=1)
        gradient = torch.func.grad(lambda x, pool=pool: pool(x).square().sum())
        pooled = torch.vmap(partial(pool, return_indices=True), in_dims=in_dim)(x)
        results.append((*pooled, torch.vmap(gradient, in_dim)(x)))
    torch.testing.assert_close(*results)


def test_vmap_of_images_without_a_batch_and_of_no_images(device: torch.device) -> None:
    pool = torch.vmap(lambda x: relu_max_pool2d(x, 2))
    x = torch.randn(3, 4, 8, 9, device=device, requires_grad=True)
    assert torch.equal(pool(x), pytorchs(x, 2))
    weights = torch.arange(1.0, 4.0, device=device).view(3, 1, 1, 1)  # of each image
    gradient = torch.vmap(torch.func.grad(lambda x, w: (w * relu_max_pool2d(x, 2)).sum()))
    (expected,) = torch.autograd.grad((pytorchs(x, 2) * weights).sum(), x)
    assert torch.equal(gradient(x, weights), expected)
    for shape in ((3, 0, 4, 8, 9), (0, 2, 4, 8, 9)):
        assert pool(none := torch.randn(shape, device=device)).shape == (*shape[:3], 4, 4)
    assert torch.equal(gradient(none, weights[:0]), none)


def test_forward_mode_is_pytorchs(device: torch.device) -> None:
    given = [(torch.randn(2, 3, 9, 8, device=device),) for _ in range(2)]
    ours, theirs = (
        torch.func.jvp(lambda x, f=function: f(x, 3, 2, 1), *given)
        for function in (relu_max_pool2d, pytorchs)
    )
    assert all(map(torch.equal, ours, theirs))


def test_the_layer_is_relu_and_max_pool(device: torch.device) -> None:
    x = torch.randn(2, 3, 9, 8, device=device)
    for arguments in ({"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (2, 3)}):
        theirs = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(**arguments))
        assert torch.equal(convtime.nn.ReLUMaxPool2d(**arguments)(x), theirs(x))
    both = convtime.nn.ReLUMaxPool2d(2, return_indices=True)(x)
    torch.testing.assert_close(both, pytorchs(x, 2, return_indices=True))
    with pytest.raises(TypeError, match="script cannot compile convtime.nn.ReLUMaxPool2d"):
        torch.jit.script(convtime.nn.ReLUMaxPool2d(2))


X = (1, 2, 5, 5)
BAD: list[tuple[tuple[int, ...], dict[str, Any], str]] = [
    (X, {"kernel_size": 0}, "kernel_size must be between 1"),
    (X, {"kernel_size": 2, "stride": 0}, "stride must be between 1"),
    (X, {"kernel_size": 2, "dilation": 0}, "dilation must be"),
    (X, {"kernel_size": 2, "padding": -1}, "padding must be"),
    (X, {"kernel_size": 2, "padding": 2}, "at most half of kernel_size"),
    (X, {"kernel_size": 6}, "at least as large as a window over 6"),
    ((1, 0, 5, 5), {"kernel_size": 2}, "channels, height and width"),
    ((5, 5), {"kernel_size": 2}, r"shape \(N, C, H, W\) or \(C, H, W\)"),
    (X, {"kernel_size": (1, 2, 3)}, "one or two"),
    (X, {"kernel_size": 2.5}, "one or two whole numbers"),
]


def test_bad_geometry_and_dtypes_are_refused(device: torch.device) -> None:
    for shape, window, message in BAD:
        x = torch.ones(shape, device=device)
        with pytest.raises((RuntimeError, TypeError)) as theirs:
            pytorchs(x, **window)
        with pytest.raises(theirs.type, match=message):
            relu_max_pool2d(x, **window)
        with FakeTensorMode() as mode, pytest.raises((RuntimeError, TypeError)):
            relu_max_pool2d(mode.from_tensor(x), **window)
    for dtype in (torch.int32, torch.bool, torch.complex64):
        x = torch.ones(X, dtype=dtype, device=device)
        with pytest.raises(RuntimeError, match="float16, bfloat16, float32 or float64"):
            relu_max_pool2d(x, 2)
        with FakeTensorMode() as mode, pytest.raises(RuntimeError):
            relu_max_pool2d(mode.from_tensor(x), 2)
    with pytest.raises(TypeError, match="input must be a tensor, got list"):
        relu_max_pool2d([1.0], 2)


# --- What needs a GPU


@pytest.mark.cuda
@AMOUNTS
def test_large_geometries_are_pytorchs(amount: int) -> None:
    for_all(large_cases(), lambda case: check(case, "cuda"), 5 * amount)


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("window", [*VECTORISED.values(), (3, 2, 0), (5, 2, 2)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_thousand_repeats_are_equal(window: tuple[int, ...], channels_last: bool) -> None:
    x = few_values((4, 16, 56, 56), "cuda", torch.float16, channels_last, specials=True)
    grad = torch.randn_like(relu_max_pool2d(x, *window))

    def run() -> list[torch.Tensor]:
        leaf = x.detach().requires_grad_()
        output = relu_max_pool2d(leaf, *window)
        results = output.detach(), *torch.autograd.grad(output, leaf, grad)
        return [tensor.view(torch.int16) for tensor in results]

    expected = run()
    different = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(1000):
        for actual, first in zip(run(), expected, strict=True):
            different += (actual != first).sum()
    assert int(different) == 0


@pytest.mark.cuda
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", VECTORISED.values())
def test_captured_by_a_cuda_graph(window: tuple[int, ...], channels_last: bool) -> None:
    x = few_values((2, 16, 32, 32), "cuda", torch.float32, channels_last).requires_grad_()
    grad = torch.randn(2, 16, 16, 16, device="cuda")

    def run() -> tuple[torch.Tensor, ...]:
        output = relu_max_pool2d(x, *window)
        return output, *torch.autograd.grad(output, x, grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    with torch.no_grad():
        x.copy_(few_values(x.shape, "cuda", seed=7))
    graph.replay()
    assert all(map(torch.equal, captured, run()))
    assert torch.equal(captured[0], pytorchs(x, *window))


@pytest.mark.cuda
def test_work_is_on_the_current_stream() -> None:
    x = torch.randn(2, 16, 64, 64, device="cuda")
    expected = pytorchs(x + 1, 3, 2, 1)
    relu_max_pool2d(x, 3, 2, 1)  # The first call compiles, for longer than the stream is kept busy.
    torch.ops.convtime.spin_ns(1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.ops.convtime.spin_ns(20_000_000)
        output = relu_max_pool2d(x + 1, 3, 2, 1)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(output, expected)


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("vectorised", [False, True])
def test_more_than_2_to_the_31_elements(channels_last: bool, vectorised: bool) -> None:
    batch, width = (2**31 // (8 * 1024 * 1024) + 1), 1024 if vectorised else 1022
    needed = 2 * batch * 8 * 1024 * width * 3
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of GPU memory")
    channels = 8 if vectorised else 9
    x = torch.zeros(batch, channels, 1024, width, device="cuda", dtype=torch.float16)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    assert x.numel() > 2**31
    for number in (0, batch - 1):
        x[number].normal_()
    # PyTorch's own does not take all of it, and so is given the images that are not zeros.
    output = relu_max_pool2d(x.requires_grad_(), 3, 2, 1)
    for number in (0, batch - 1):
        assert torch.equal(output[number], pytorchs(x.detach()[number : number + 1], 3, 2, 1)[0])
    assert int(output.detach()[1:-1].count_nonzero()) == 0
    (gradient,) = torch.autograd.grad(
        output, x, torch.ones((), device="cuda", dtype=torch.float16).expand_as(output)
    )
    last = x.detach()[batch - 1 :].clone(memory_format=torch.preserve_format).requires_grad_()
    expected = pytorchs(last, 3, 2, 1)
    expected.backward(torch.ones_like(expected))
    assert torch.equal(gradient[batch - 1 :], last.grad)


@pytest.mark.cuda
@pytest.mark.thorough
def test_a_channels_last_image_of_more_than_2_to_the_31_elements() -> None:
    channels = 2**11 + 1
    needed = 16 * channels * 2**20
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of GPU memory")
    x = torch.zeros(1, channels, 1024, 1024, device="cuda", dtype=torch.float16)
    x = x.to(memory_format=torch.channels_last)
    for number in (0, channels - 1):
        x[:, number].normal_()
    output = relu_max_pool2d(x.requires_grad_(), 3, 2, 1)
    assert output.is_contiguous(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(output, x, torch.ones_like(output))
    for number in (0, channels - 1):
        plane = x.detach()[:, number : number + 1].contiguous().requires_grad_()
        expected = pytorchs(plane, 3, 2, 1)
        assert torch.equal(output[:, number : number + 1], expected)
        (of_plane,) = torch.autograd.grad(expected, plane, torch.ones_like(expected))
        torch.testing.assert_close(gradient[:, number : number + 1], of_plane)
