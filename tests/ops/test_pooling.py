"""relu_max_pool2d against PyTorch's relu and max_pool2d."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import convtime.nn
from convtime import ops

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


def make_input(
    shape: tuple[int, ...],
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    specials: bool = False,
    seed: int = 0,
) -> torch.Tensor:
    """Of few values, so that there are ties, and with NaN and infinities if asked for."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).mul(2).round().div(2)
    if specials:
        drawn = torch.rand(shape, generator=generator)
        x[drawn < 0.1] = math.nan
        x[(drawn > 0.1) & (drawn < 0.2)] = math.inf
        x[(drawn > 0.2) & (drawn < 0.5)] = -math.inf
    x = x.to(device, dtype)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def assert_matches(x: torch.Tensor, **window: Any) -> None:
    """Output, indices and gradient are PyTorch's; sums may be rounded otherwise."""
    output, indices = relu_max_pool2d(x, **window, return_indices=True)
    expected, expected_indices = pytorchs(x, **window, return_indices=True)
    assert_equal(output, expected)
    assert_equal(relu_max_pool2d(x, **window), expected)
    assert_equal(indices, expected_indices)
    leaves = [x.detach().clone(memory_format=torch.preserve_format) for _ in range(2)]
    grad = make_input(output.shape, x.device, x.dtype, seed=1)
    results: list[torch.Tensor] = []
    for leaf, function in zip(leaves, (relu_max_pool2d, pytorchs), strict=True):
        leaf.requires_grad_()
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


def draw_case(chance: random.Random) -> tuple[tuple[int, ...], dict[str, Any]]:
    while True:
        kernel = chance.choice([(1, 1), (2, 2), (2, 2), (3, 3), (3, 3), (2, 3), (5, 1), (4, 7)])
        dilation = chance.choice([(1, 1), (1, 1), (1, 1), (2, 1), (3, 2)])
        window: dict[str, Any] = {
            "kernel_size": kernel,
            "stride": chance.choice([None, 1, 2, 2, 2, (3, 1)]),
            "padding": tuple(chance.randint(0, size // 2) for size in kernel),
            "dilation": dilation,
            "ceil_mode": chance.random() < 0.5,
        }
        shape = (
            chance.randint(1, 3),
            chance.choice([1, 3, 8, 16, 24]),
            chance.choice([1, 5, 7, 8, 13, 16, 33]),
            chance.choice([1, 6, 8, 11, 16, 24, 40]),
        )
        if fits(shape[2:], window):
            return shape[chance.choice([0, 0, 0, 1]) :], window


@pytest.mark.parametrize("seed", range(8))
def test_random_geometries_are_pytorchs(seed: int, device: torch.device) -> None:
    chance = random.Random(seed)
    for case in range(30):
        shape, window = draw_case(chance)
        channels_last = len(shape) == 4 and chance.random() < 0.5
        dtype = DTYPES[case % len(DTYPES)]
        x = make_input(shape, device, dtype, channels_last, case % 3 == 0, seed=case)
        try:
            assert_matches(x, **window)
        except AssertionError as error:
            raise AssertionError(f"{shape} {dtype} {channels_last=} {window}: {error}") from error


@pytest.mark.parametrize("window", VECTORISED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_vectorised_windows_are_pytorchs(
    window: str, dtype: torch.dtype, channels_last: bool, device: torch.device
) -> None:
    kernel, stride, padding = VECTORISED[window]
    for height, width in (
        (16, 16),
        (17, 24),
        (1, 8),
        (2, 8),
        (3, 40),
        (23, 8),
        (9, 15),
        (12, 28),
        (7, 14),
        (56, 112),
    ):
        if height < kernel - 2 * padding:
            continue
        for ceil_mode in (False, True):
            for specials in (False, True):
                x = make_input((2, 16, height, width), device, dtype, channels_last, specials)
                assert_matches(
                    x, kernel_size=kernel, stride=stride, padding=padding, ceil_mode=ceil_mode
                )


@pytest.mark.parametrize("kernel", [(16, 16), (11, 12), (128, 1)])
def test_windows_of_more_than_a_byte_can_count(
    kernel: tuple[int, int], device: torch.device
) -> None:
    x = make_input((1, 3, 140, 40), device, torch.float32, specials=True)
    assert_matches(x, kernel_size=kernel, stride=5, padding=0)


def test_windows_of_padding_alone_are_minus_infinity(device: torch.device) -> None:
    x = torch.ones(1, 1, 1, 1, device=device, requires_grad=True)
    window = {"kernel_size": 2, "padding": 1, "dilation": 5, "stride": 5, "ceil_mode": True}
    output = relu_max_pool2d(x, **window)
    assert_equal(output, pytorchs(x, **window))
    assert torch.equal(output.detach().cpu(), torch.full((1, 1, 1, 1), -math.inf))
    (gradient,) = torch.autograd.grad(output, x, torch.ones_like(output))
    assert torch.equal(gradient, torch.zeros_like(x))


@pytest.mark.parametrize("make_x", ["transposed", "sliced", "expanded", "misaligned", "channels"])
def test_any_strides(make_x: str, device: torch.device) -> None:
    def rand(*shape: int) -> torch.Tensor:
        return make_input(shape, device, torch.float16)

    x = {
        "transposed": rand(2, 4, 16, 24).transpose(2, 3),
        "sliced": rand(2, 8, 16, 48)[:, ::2, :, ::2],
        "expanded": rand(1, 4, 1, 16).expand(2, 4, 16, 16),
        "misaligned": rand(3 + 2 * 4 * 16 * 16)[3:].view(2, 4, 16, 16),
        "channels": rand(2, 40, 16, 16).to(memory_format=torch.channels_last)[:, 5:21],
    }[make_x]
    for kernel, stride, padding in VECTORISED.values():
        assert_matches(x, kernel_size=kernel, stride=stride, padding=padding)


@pytest.mark.parametrize("grad_layout", ["contiguous", "channels_last", "expanded", "misaligned"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_outputs_gradient_may_have_any_layout(
    grad_layout: str, channels_last: bool, device: torch.device
) -> None:
    x = make_input((2, 8, 16, 16), device, channels_last=channels_last).requires_grad_()
    outputs = relu_max_pool2d(x, 3, 2, 1), pytorchs(x, 3, 2, 1)
    shape = outputs[0].shape
    grad = {
        "contiguous": torch.randn(shape, device=device),
        "channels_last": torch.randn(shape, device=device).to(memory_format=torch.channels_last),
        "expanded": torch.randn((), device=device).expand(shape),
        "misaligned": torch.randn(1 + shape.numel(), device=device)[1:].view(shape),
    }[grad_layout]
    ours, theirs = (torch.autograd.grad(output, x, grad)[0] for output in outputs)
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs)


def test_empty_batches(device: torch.device) -> None:
    x = torch.randn(0, 3, 8, 8, device=device, requires_grad=True)
    assert_matches(x, kernel_size=3, stride=2, padding=1)
    output = relu_max_pool2d(x, 2)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert gradient.shape == x.shape


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 1, 1, 2)])
def test_gradcheck(window: tuple[int, ...], channels_last: bool, device: torch.device) -> None:
    x = torch.randn(2, 4, 7, 8, device=device, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return relu_max_pool2d(x, *window)

    assert torch.autograd.gradcheck(fn, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fn, x, check_fwd_over_rev=True)


@pytest.mark.parametrize("return_indices", [False, True])
def test_indices_come_with_gradients(return_indices: bool, device: torch.device) -> None:
    x = torch.randn(2, 3, 9, 9, device=device, requires_grad=True)
    results = relu_max_pool2d(x, 3, 2, return_indices=return_indices)
    output = results[0] if return_indices else results
    if return_indices:
        assert not results[1].requires_grad
    expected = pytorchs(x, 3, 2)
    (ours,), (theirs,) = (torch.autograd.grad(out.square().sum(), x) for out in (output, expected))
    torch.testing.assert_close(ours, theirs)


def test_what_is_kept_for_the_gradient_is_a_byte_an_output(device: torch.device) -> None:
    x = torch.randn(2, 8, 16, 16, device=device, requires_grad=True)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, keep):
        output = relu_max_pool2d(x, 3, 2, 1)
    assert [tensor.nbytes for tensor in kept] == [output.numel()]


WINDOW = ([3, 3], [2, 2], [1, 1], [1, 1], False)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dim", [3, 4])
def test_opcheck(dim: int, channels_last: bool, device: torch.device) -> None:
    if dim == 3 and channels_last:
        pytest.skip("there is no such layout")
    x = make_input((2, 8, 9, 16)[4 - dim :], device, channels_last=channels_last)
    convtime_ops = torch.ops.convtime
    output, winners = convtime_ops.relu_max_pool2d_with_winners(x, *WINDOW)
    for leaf in (x, x.clone().requires_grad_()):
        torch.library.opcheck(convtime_ops.relu_max_pool2d.default, (leaf, *WINDOW))
        torch.library.opcheck(convtime_ops.relu_max_pool2d_with_winners.default, (leaf, *WINDOW))
    for grad in (output, output.clone().requires_grad_()):
        arguments = (grad, winners, list(x.shape), *WINDOW)
        torch.library.opcheck(convtime_ops.relu_max_pool2d_backward.default, arguments)
    indices = convtime_ops.relu_max_pool2d_indices.default
    torch.library.opcheck(indices, (winners, list(x.shape), *WINDOW))


def test_compiles_without_graph_breaks_and_with_dynamic_shapes(device: torch.device) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, indices = relu_max_pool2d(x + 1, 3, 2, 1, return_indices=True)
        return output * 2, indices

    compiled = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (8, 11):
        x = torch.randn(2, 4, size, size + 1, device=device, requires_grad=True)
        actual, expected = compiled(x), fn(x)
        for ours, theirs in zip(actual, expected, strict=True):
            assert torch.equal(ours, theirs)
        (ours,), (theirs,) = (torch.autograd.grad(out.sum(), x) for out, _ in (actual, expected))
        torch.testing.assert_close(ours, theirs)


def test_compiled_autograd_traces_the_gradient(device: torch.device) -> None:
    x = torch.randn(2, 3, 9, 8, device=device)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    losses = [
        function(leaf, 3, 2, 1).square().sum()
        for function, leaf in zip((relu_max_pool2d, pytorchs), leaves, strict=True)
    ]
    losses[1].backward()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        losses[0].backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize("in_dim", [0, 2, 4])
def test_vmap_is_pytorchs(in_dim: int, device: torch.device) -> None:
    x = torch.randn(3, 2, 4, 8, 9, device=device).movedim(0, in_dim)
    batched = (
        torch.vmap(lambda x, f=function: f(x, 3, 2, 1, return_indices=True), in_dims=in_dim)(x)
        for function in (relu_max_pool2d, pytorchs)
    )
    for ours, theirs in zip(*batched, strict=True):
        assert torch.equal(ours, theirs)
    gradients = (
        torch.vmap(torch.func.grad(lambda x, f=function: f(x, 3, 2, 1).square().sum()), in_dim)(x)
        for function in (relu_max_pool2d, pytorchs)
    )
    torch.testing.assert_close(*gradients)


def test_vmap_of_images_without_a_batch(device: torch.device) -> None:
    x = torch.randn(3, 4, 8, 9, device=device)
    ours = torch.vmap(lambda x: relu_max_pool2d(x, 2))(x)
    assert torch.equal(ours, pytorchs(x, 2))
    gradient = torch.vmap(torch.func.grad(lambda x: relu_max_pool2d(x, 2).sum()))(x)
    leaf = x.clone().requires_grad_()
    pytorchs(leaf, 2).sum().backward()
    assert torch.equal(gradient, leaf.grad)


def test_vmap_of_an_empty_batch(device: torch.device) -> None:
    x = torch.randn(3, 0, 4, 8, 9, device=device)
    assert torch.vmap(lambda x: relu_max_pool2d(x, 2))(x).shape == (3, 0, 4, 4, 4)
    none = torch.randn(0, 2, 4, 8, 9, device=device)
    assert torch.vmap(lambda x: relu_max_pool2d(x, 2))(none).shape == (0, 2, 4, 4, 4)
    gradient = torch.vmap(torch.func.grad(lambda x: relu_max_pool2d(x, 2).sum()))(none)
    assert torch.equal(gradient, none)


def test_forward_mode_is_pytorchs(device: torch.device) -> None:
    x, tangent = (torch.randn(2, 3, 9, 8, device=device) for _ in range(2))
    ours, theirs = (
        torch.func.jvp(lambda x, f=function: f(x, 3, 2, 1), (x,), (tangent,))
        for function in (relu_max_pool2d, pytorchs)
    )
    for actual, expected in zip(ours, theirs, strict=True):
        assert torch.equal(actual, expected)


def test_the_layer_is_relu_and_max_pool(device: torch.device) -> None:
    x = torch.randn(2, 3, 9, 8, device=device)
    for arguments in ({"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (2, 3)}):
        theirs = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(**arguments))
        assert torch.equal(convtime.nn.ReLUMaxPool2d(**arguments)(x), theirs(x))
    output, indices = convtime.nn.ReLUMaxPool2d(2, return_indices=True)(x)
    assert output.shape == indices.shape
    with pytest.raises(
        TypeError, match="torch.jit.script cannot compile convtime.nn.ReLUMaxPool2d"
    ):
        torch.jit.script(convtime.nn.ReLUMaxPool2d(2))


def test_numbers_may_be_numpys(device: torch.device) -> None:
    x = torch.randn(2, 3, 9, 8, device=device)
    assert torch.equal(relu_max_pool2d(x, np.int64(2), [np.int32(1)]), pytorchs(x, 2, 1))


BAD: dict[str, tuple[tuple[int, ...], dict[str, Any], str]] = {
    "kernel of zero": ((1, 2, 5, 5), {"kernel_size": 0}, "kernel_size must be between 1"),
    "stride of zero": ((1, 2, 5, 5), {"kernel_size": 2, "stride": 0}, "stride must be between 1"),
    "dilation of zero": ((1, 2, 5, 5), {"kernel_size": 2, "dilation": 0}, "dilation must be"),
    "negative padding": ((1, 2, 5, 5), {"kernel_size": 2, "padding": -1}, "padding must be"),
    "padding": ((1, 2, 5, 5), {"kernel_size": 2, "padding": 2}, "at most half of kernel_size"),
    "window too large": ((1, 2, 5, 5), {"kernel_size": 6}, "at least as large as a window over 6"),
    "no channels": ((1, 0, 5, 5), {"kernel_size": 2}, "channels, height and width"),
    "two dimensions": ((5, 5), {"kernel_size": 2}, r"shape \(N, C, H, W\) or \(C, H, W\)"),
    "three numbers": ((1, 2, 5, 5), {"kernel_size": (1, 2, 3)}, "one or two"),
    "fraction": ((1, 2, 5, 5), {"kernel_size": 2.5}, "one or two whole numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_geometry_is_refused(case: str, device: torch.device) -> None:
    shape, window, message = BAD[case]
    x = torch.ones(shape, device=device)
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        pytorchs(x, **window)
    with pytest.raises(theirs.type, match=message):
        relu_max_pool2d(x, **window)
    with FakeTensorMode() as mode, pytest.raises((RuntimeError, TypeError)):
        relu_max_pool2d(mode.from_tensor(x), **window)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_other_dtypes_are_refused(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(1, 2, 5, 5, dtype=dtype, device=device)
    with pytest.raises(RuntimeError, match="dtype must be float16, bfloat16, float32 or float64"):
        relu_max_pool2d(x, 2)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError):
        relu_max_pool2d(mode.from_tensor(x), 2)


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="input must be a tensor, got list"):
        relu_max_pool2d([1.0], 2)


# --- What needs a GPU ---------------------------------------------------------------------------


def draw_large_case(chance: random.Random) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Planes of several tiles, rows too long for one, and many small planes in a tile.

    Channels are multiples of 2, 4, 8 and 16 bytes, some of them in tensors that occupy the GPU with
    packs of that size.
    """
    while True:
        kernel = chance.choice([(2, 2), (3, 3), (3, 3), (5, 5), (7, 7), (2, 6), (7, 2), (3, 9)])
        channels = chance.choice([3, 8, 31, 62, 64, 68])
        shape = chance.choice(
            [
                (2, channels, chance.randint(50, 130), chance.randint(50, 130)),
                (
                    1,
                    chance.choice([1, 3, 8, 193]),
                    chance.randint(7, 20),
                    chance.randint(1000, 9000),
                ),
                (chance.randint(60, 300), chance.choice([3, 6, 7, 16]), 7, chance.randint(7, 14)),
            ]
        )
        window = {
            "kernel_size": kernel,
            "stride": chance.choice([1, 2, 2, 3, (4, 1), (1, 6)]),
            "padding": tuple(chance.randint(0, size // 2) for size in kernel),
            "dilation": chance.choice([(1, 1), (1, 1), (2, 2), (3, 2)]),
            "ceil_mode": chance.random() < 0.5,
        }
        if fits(shape[2:], window):
            return shape, window


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(8))
def test_large_random_geometries_are_pytorchs(seed: int) -> None:
    chance = random.Random(seed)
    for case in range(20):
        shape, window = draw_large_case(chance)
        channels_last = chance.random() < 0.5
        dtype = DTYPES[case % len(DTYPES)]
        x = make_input(shape, "cuda", dtype, channels_last, case % 3 == 0, seed=case)
        try:
            assert_matches(x, **window)
        except AssertionError as error:
            raise AssertionError(f"{shape} {dtype} {channels_last=} {window}: {error}") from error


@pytest.mark.cuda
@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_may_begin_anywhere_within_16_bytes(offset: int, dtype: torch.dtype) -> None:
    x = make_input((offset + 3 * 7 * 23 * 45,), "cuda", dtype)[offset:].view(3, 7, 23, 45)
    for window in ((3, 2, 0), (3, 1, 1), (2, 2, 0), (5, 2, 2)):
        assert_matches(x, kernel_size=window[0], stride=window[1], padding=window[2])


@pytest.mark.cuda
@pytest.mark.parametrize("window", [*VECTORISED.values(), (3, 2, 0), (5, 2, 2)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_thousand_repeats_are_equal(window: tuple[int, ...], channels_last: bool) -> None:
    x = make_input((4, 16, 56, 56), "cuda", torch.float16, channels_last, specials=True)
    grad = torch.randn_like(relu_max_pool2d(x, *window))

    def run() -> list[torch.Tensor]:
        leaf = x.detach().requires_grad_()
        output = relu_max_pool2d(leaf, *window)
        return [output.detach(), *torch.autograd.grad(output, leaf, grad)]

    expected = [tensor.view(torch.int16) for tensor in run()]
    different = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(1000):
        for actual, first in zip(run(), expected, strict=True):
            different += (actual.view(torch.int16) != first).sum()
    assert int(different) == 0


@pytest.mark.cuda
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", VECTORISED.values())
def test_captured_by_a_cuda_graph(window: tuple[int, ...], channels_last: bool) -> None:
    x = make_input((2, 16, 32, 32), "cuda", torch.float32, channels_last).requires_grad_()
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
        x.copy_(make_input(x.shape, "cuda", seed=7))
    graph.replay()
    for ours, expected in zip(captured, run(), strict=True):
        assert torch.equal(ours, expected)
    assert torch.equal(captured[0], pytorchs(x, *window))


@pytest.mark.cuda
def test_work_is_on_the_current_stream() -> None:
    x = torch.randn(2, 16, 64, 64, device="cuda")
    expected = pytorchs(x + 1, 3, 2, 1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.ops.convtime.spin_ns(20_000_000)
        output = relu_max_pool2d(x + 1, 3, 2, 1)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(output, expected)


@pytest.mark.cuda
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
    x.requires_grad_()
    output = relu_max_pool2d(x, 3, 2, 1)
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
