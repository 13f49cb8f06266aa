"""Operations whose times are watched: save a run, and compare later ones with it.

    pytest examples/regressions --convtime-save main
    pytest examples/regressions --convtime-against main --convtime-fail-on slower:3%

On a GPU where there is one, else on the CPU. docs/guides/regression-tests.md says what else there
is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)  # several wait for each other, and for whatever else the machine does


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


@pytest.mark.parametrize("size", [1 << 14, 1 << 18])
def test_relu(time_op: Callable[..., Any], size: int) -> None:
    time_op(torch.relu, rand(size))


@pytest.mark.convtime(placement="as-is", budget=0.5)
def test_layer_norm(time_op: Callable[..., Any]) -> None:
    time_op(F.layer_norm, rand(512, 256), (256,))


def test_conv2d(time_op: Callable[..., Any]) -> None:
    time_op(F.conv2d, rand(4, 16, 28, 28), rand(16, 16, 3, 3), kwargs={"padding": 1})


def test_two_ways_to_add_up_compute_the_same(compare: Callable[..., Any]) -> None:
    x = rand(256, 256)
    found = compare({"sum": lambda: x.sum(1), "einsum": lambda: torch.einsum("ij->i", x)})
    assert found.same_results["einsum"].same
