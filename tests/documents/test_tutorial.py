"""The tutorial's kernels against PyTorch's operations, and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import ROOT
from tests.helpers.op_calls import few_values
from tests.helpers.scripts import load_script

DTYPES = [torch.float32, torch.float16]
# Rows and channels that are multiples of 16 bytes, and that are not; full blocks, and not.
SHAPES = [(1, 1, 3, 3), (2, 3, 17, 33), (2, 8, 16, 64), (3, 33, 9, 15), (1, 40, 12, 70)]


@pytest.fixture(scope="module")
def tutorial() -> Any:
    return load_script(ROOT / "examples" / "tutorial" / "tutorial.py")


def test_unknown_steps_dtypes_and_windows_are_refused(tutorial: Any) -> None:
    x = torch.ones(1, 2, 5, 5)
    with pytest.raises(ValueError, match="step must be one of .*'naive'.* got 'fast'"):
        tutorial.relu_max_pool2d(x, 3, 2, 1, step="fast")
    with pytest.raises(ValueError, match="float16 or float32, got torch.float64"):
        tutorial.relu_max_pool2d(x.double(), 3, 2, 1, step="naive")
    with pytest.raises(ValueError, match=r"window \(3, 2, 1\).* got \(2, 2, 0\)"):
        tutorial.relu_max_pool2d(x, 2, 2, 0, step="vectorised")
    with pytest.raises(ValueError, match="build must be one of .*'fast_math'.* got 'min_blocks'"):
        tutorial.activation(x, "relu", step="naive", build="min_blocks")


@pytest.mark.cuda
def test_pool_steps_are_pytorchs(tutorial: Any) -> None:
    variants = [(step, "plain") for step in tutorial.POOL_STEPS]
    variants += [("vectorised", build) for build in tutorial.POOL_BUILDS[1:]]
    cases = itertools.product(DTYPES, SHAPES, (False, True), (False, True))
    for dtype, shape, channels_last, specials in cases:
        x = few_values(shape, "cuda", dtype, channels_last, specials)
        expected = F.max_pool2d(F.relu(x), 3, 2, 1)
        for step, build in variants:
            output = tutorial.relu_max_pool2d(x, 3, 2, 1, step=step, build=build)
            assert output.stride() == expected.stride()
            torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)
    x = few_values((2, 5, 13, 21), "cuda")
    for step in set(tutorial.POOL_STEPS) - {"unrolled", "vectorised"}:
        output = tutorial.relu_max_pool2d(x, 4, 3, 2, step=step)
        assert torch.equal(output, F.max_pool2d(F.relu(x), 4, 3, 2))


@pytest.mark.cuda
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh"])
def test_activations_are_pytorchs(tutorial: Any, name: str, gradient: bool) -> None:
    for dtype, count, shift in itertools.product(DTYPES, (1, 8, 129, 100_003), (0, 1)):
        x = torch.randn(count + shift, device="cuda").mul(3).to(dtype)[shift:]
        wide = x.double().requires_grad_()
        approximate = "tanh" if name == "gelu_tanh" else "none"
        expected = F.relu(wide) if name == "relu" else F.gelu(wide, approximate=approximate)
        grad = torch.randn_like(x) if gradient else None
        if grad is not None:
            (expected,) = torch.autograd.grad(expected, wide, grad.double())
        for step, build in itertools.product(("naive", "vectorised"), ("plain", "fast_math")):
            output = tutorial.activation(x, name, grad, step=step, build=build)
            tolerance = 5e-2 if build == "fast_math" else 2e-3 if dtype == torch.float16 else 1e-5
            torch.testing.assert_close(output, expected.to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.cuda
def test_facts_are_those_of_the_launched_kernel(tutorial: Any) -> None:
    x = torch.randn(2, 8, 32, 64, device="cuda")
    most = torch.cuda.get_device_properties(0).max_threads_per_multi_processor
    for step, build in itertools.product(tutorial.POOL_STEPS, ("plain", "max_registers")):
        facts = tutorial.relu_max_pool2d_facts(x, 3, 2, 1, step=step, build=build)
        assert facts.occupancy == facts.threads * facts.blocks / most <= 1
        assert 0 < facts.registers <= (24 if build == "max_registers" else 255)
        assert (facts.shared_bytes > 0) == (step == "shared_memory")
