"""The tutorial's kernels against PyTorch's operations in 64 bits, and what they refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from convtime.ops import tutorial
from tests.helpers.op_calls import few_values, with_specials

DTYPES = [torch.float32, torch.float16]
COMPILED = {"3×3/2": (3, 2, 1), "2×2/2": (2, 2, 0)}  # kernel size, stride, padding


def activated(x: torch.Tensor, name: str, grad_output: torch.Tensor | None) -> torch.Tensor:
    """The activation or its gradient by PyTorch, in 64 bits, rounded to the input's dtype."""
    wide = x.double().requires_grad_()
    approximate = "tanh" if name == "gelu_tanh" else "none"
    y = F.relu(wide) if name == "relu" else F.gelu(wide, approximate=approximate)
    if grad_output is None:
        return y.detach().to(x.dtype)
    return torch.autograd.grad(y, wide, grad_output.double())[0].to(x.dtype)


# --- What is checked before a GPU is needed -------------------------------------------------------


def pool(x: torch.Tensor, *window: int, step: str = "naive", build: str = "plain") -> torch.Tensor:
    return tutorial.relu_max_pool2d(x, *(window or (3, 2, 1)), step=step, build=build)


def activate(name: str, grad: torch.Tensor | None = None, build: str = "plain") -> torch.Tensor:
    return tutorial.activation(ONES, name, grad, step="naive", build=build)


ONES = torch.ones(1, 2, 5, 5)
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: pool(ONES, step="fast"), "step must be one of 'naive', 'coal"),
    (lambda: pool(ONES, build="O3"), "build must be one of 'plain', 'launch_"),
    (lambda: pool(ONES.double()), "float16 or float32, got Double"),
    (lambda: pool(ONES[0]), r"\(N, C, H, W\) .* got \[2, 5, 5\]"),
    (lambda: pool(ONES[:, :, :0]), "at least one channel, row and column"),
    (lambda: pool(ONES, 0, 1, 0), "kernel_size must be between 1"),
    (lambda: pool(ONES, 2, 0, 0), "stride must be between 1"),
    (lambda: pool(ONES, 3, 1, 2), "at most half of kernel_size 3, got 2"),
    (lambda: pool(ONES, 6, 1, 0), "at most height and width"),
    (lambda: pool(torch.ones(1).expand(2**10, 2**10, 2**5, 2**6)), "got 2147483648 and 536870912"),
    (lambda: pool(ONES, 3, 1, 1, step="vectorised"), "got kernel_size 3, stride 1"),
    (lambda: pool(torch.ones(1, 1, 400, 400), 200, 1, 0, step="shared_memory"), "49152 bytes"),
    (lambda: pool(ONES, 1, 2**31 - 1, 0, step="shared_memory"), "room for 49152 bytes"),
    (lambda: activate("silu"), "'gelu_tanh', got 'silu'"),
    (lambda: activate("relu", build="min_blocks"), "build must be one of 'plain', 'fast_math'"),
    (lambda: activate("relu", ONES[0]), "grad_output must have the input's shape"),
    (lambda: pool([1.0]), "input must be a tensor, got list"),  # type: ignore[arg-type]
]


def test_what_does_not_fit_is_refused() -> None:
    for call, message in REFUSED:
        with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
            call()


def test_each_step_and_build_is_known_and_wants_a_gpu() -> None:
    image, x = torch.ones(2, 3, 8, 8), torch.ones(5)
    for step, build in itertools.product(tutorial.POOL_STEPS, tutorial.POOL_BUILDS):
        for pooling in (tutorial.relu_max_pool2d, tutorial.relu_max_pool2d_facts):
            with pytest.raises(RuntimeError, match="must be on a CUDA device.* got cpu"):
                pooling(image, 3, 2, 1, step=step, build=build)
    for step, build, name in itertools.product(
        tutorial.ACTIVATION_STEPS, tutorial.ACTIVATION_BUILDS, tutorial.ACTIVATIONS
    ):
        for activate in (tutorial.activation, tutorial.activation_facts):
            with pytest.raises(RuntimeError, match="must be on a CUDA device.* got cpu"):
                activate(x, name, x, step=step, build=build)


def test_facts_say_what_a_multiprocessor_has_room_for() -> None:
    assert str(tutorial.KernelFacts(32, 0, 0, 128, 16, 1.0)) == (
        "32 registers: 16 blocks of 128 threads, 100 % of a multiprocessor's threads"
    )
    assert str(tutorial.KernelFacts(24, 40, 2340, 128, 8, 0.5)) == (
        "24 registers, 40 bytes of local memory, 2340 bytes of shared memory a block: "
        "8 blocks of 128 threads, 50 % of a multiprocessor's threads"
    )


# --- What needs a GPU -----------------------------------------------------------------------------


def assert_pools(x: torch.Tensor, window: tuple[int, int, int], step: str, build: str) -> None:
    expected = F.max_pool2d(F.relu(x), *window)
    output = tutorial.relu_max_pool2d(x, *window, step=step, build=build)
    assert output.stride() == expected.stride()
    case = f"{x.dtype} {x.shape} {x.stride()} {window} {build}"
    torch.testing.assert_close(
        output, expected, rtol=0, atol=0, equal_nan=True, msg=lambda told: f"{case}: {told}"
    )


@pytest.mark.cuda
@pytest.mark.parametrize(
    "builds", [("plain",), pytest.param(tutorial.POOL_BUILDS, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("step", tutorial.POOL_STEPS)
def test_pool_steps_are_pytorchs(step: str, builds: tuple[str, ...]) -> None:
    # Rows and channels that are multiples of 16 bytes, and that are not; full blocks, and not.
    sizes = [(1, 1, 3, 3), (2, 3, 17, 33), (2, 8, 16, 64)]
    sizes += [(3, 33, 9, 15), (1, 40, 12, 70), (2, 64, 7, 8)]
    # A kernel is compiled for each dtype, window and layout.
    count = 1 if builds == ("plain",) else 2
    for dtype, shape, window, channels_last, specials, build in itertools.product(
        DTYPES[:count], sizes, list(COMPILED.values())[:count], (False, True), (False, True), builds
    ):
        x = few_values(shape, "cuda", dtype, channels_last, specials)
        assert_pools(x, window, step, build)


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("step", tutorial.POOL_STEPS)
def test_pool_steps_take_any_strides_and_windows(step: str) -> None:
    x = few_values((2, 8, 16, 32), "cuda", torch.float16, specials=True)
    misaligned = torch.empty(x.numel() + 3, device="cuda", dtype=x.dtype)[3:].view(x.shape)
    for given in (x.transpose(2, 3), x[:, ::2, :, 1:], misaligned.copy_(x), x[:0]):
        assert_pools(given, (3, 2, 1), step, "plain")
    if step in ("unrolled", "vectorised"):  # compiled for a window
        return
    for last in (False, True):
        x = few_values((2, 5, 13, 21), "cuda", torch.float32, last, specials=True)
        for window in ((1, 1, 0), (2, 1, 1), (5, 3, 2), (4, 2, 1), (3, 4, 0)):
            assert_pools(x, window, step, "plain")


@pytest.mark.cuda
def test_constant_memory_holds_sizes_apart_on_two_streams() -> None:
    inputs = [torch.randn(4, 8, 32 + 2 * i, 64, device="cuda") for i in range(8)]
    expected = [F.max_pool2d(F.relu(x), 3, 2, 1) for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    outputs = []
    for i, x in enumerate(inputs * 2):
        with torch.cuda.stream(streams[i % 2]):
            torch.ops.convtime.spin_ns(1_000_000)  # the next sizes are written meanwhile
            outputs.append(tutorial.relu_max_pool2d(x, 3, 2, 1, step="constant_memory"))
    torch.cuda.synchronize()
    assert all(map(torch.equal, outputs, expected * 2))


@pytest.mark.cuda
@pytest.mark.parametrize(
    "dtype", [torch.float16, pytest.param(torch.float32, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", tutorial.ACTIVATIONS)
def test_activations_are_pytorchs(name: str, gradient: bool, dtype: torch.dtype) -> None:
    for count, shift, specials in itertools.product((1, 7, 8, 129, 4096, 100_003), (0, 1), (0, 1)):
        x = torch.randn(count + shift).mul(3)
        x = (with_specials(x, 1) if specials else x).to("cuda", dtype)[shift:]
        grad = torch.randn_like(x) if gradient else None
        expected = activated(x, name, grad)
        for step in tutorial.ACTIVATION_STEPS:
            output = tutorial.activation(x, name, grad, step=step)
            tolerance = 2e-3 if dtype == torch.float16 else 1e-5
            torch.testing.assert_close(
                output, expected, rtol=tolerance, atol=tolerance, equal_nan=True
            )


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", tutorial.ACTIVATIONS)
def test_fast_math_is_close(name: str, gradient: bool) -> None:
    x = torch.randn(10_001, device="cuda").mul(3)
    grad = torch.randn_like(x) if gradient else None
    for step in tutorial.ACTIVATION_STEPS:
        output = tutorial.activation(x, name, grad, step=step, build="fast_math")
        torch.testing.assert_close(output, activated(x, name, grad), rtol=5e-2, atol=5e-2)


@pytest.mark.cuda
@pytest.mark.thorough
def test_facts_are_those_of_the_launched_kernel() -> None:
    x = torch.randn(2, 8, 32, 64, device="cuda")
    room = torch.cuda.get_device_properties(0)
    for step, build in itertools.product(tutorial.POOL_STEPS, tutorial.POOL_BUILDS):
        facts = tutorial.relu_max_pool2d_facts(x, 3, 2, 1, step=step, build=build)
        assert facts.threads == 128
        assert 1 <= facts.blocks <= room.max_threads_per_multi_processor // facts.threads
        assert facts.registers * facts.threads * facts.blocks <= 65536
        assert (facts.shared_bytes > 0) == (step == "shared_memory")
        if build == "max_registers":
            assert facts.registers <= 24
