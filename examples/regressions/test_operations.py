"""Operations whose times are watched: calibrate a baseline, and compare later runs with it.

    pytest examples/regressions --convtime-save=main --convtime-calibrate=10
    pytest examples/regressions --convtime-against=main --convtime-fail-on slower

They run on a GPU if there is one, otherwise on the CPU: then add --convtime-relative to the second
command. docs/guides/regression-tests.md describes the options.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)  # several wait for each other, and for other processes

# A chain of dependent steps: its time follows the core's clock and little else.
REFERENCE = functools.partial(torch.cumprod, torch.ones(1 << 14), 0)


@pytest.fixture
def watch(time_op: Callable[..., Any], compare: Callable[..., Any]) -> Callable[..., Any]:
    """Times a call; on a CPU next to a reference operation, whose slowdowns it shares."""

    def watch_call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if DEVICE == "cuda":
            return time_op(fn, *args, kwargs=kwargs)
        call = functools.partial(fn, *args, **kwargs)
        return compare({"reference": REFERENCE, "call": call}, check=None, interference=False)

    return watch_call


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


@pytest.mark.parametrize("size", [1 << 14, 1 << 18])
def test_relu(watch: Callable[..., Any], size: int) -> None:
    watch(torch.relu, rand(size))


@pytest.mark.convtime(placement="as-is", budget=0.5)
def test_layer_norm(watch: Callable[..., Any]) -> None:
    watch(F.layer_norm, rand(512, 256), (256,))


def test_conv2d(watch: Callable[..., Any]) -> None:
    watch(F.conv2d, rand(4, 16, 28, 28), rand(16, 16, 3, 3), padding=1)


def test_two_ways_to_add_up_compute_the_same(compare: Callable[..., Any]) -> None:
    x = rand(256, 256)
    found = compare({"sum": lambda: x.sum(1), "einsum": lambda: torch.einsum("ij->i", x)})
    assert found.same_results["einsum"].same
