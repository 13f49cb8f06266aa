"""Checks of drawn examples: few in a quick test, and more in a thorough one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_Example = TypeVar("_Example")

# Factors of the number of examples.
AMOUNTS = pytest.mark.parametrize(
    "amount", [1, pytest.param(8, marks=pytest.mark.thorough)], ids=["few", "many"]
)


def for_all(
    examples: st.SearchStrategy[_Example],
    check: Callable[[_Example], None],
    count: int,
    device: torch.device | None = None,
    count_on_gpu: int = 4,
) -> None:
    """Check this number of examples, and fewer on a GPU, where each is compiled first."""
    is_on_gpu = device is not None and device.type == "cuda"

    @settings(
        max_examples=count_on_gpu if is_on_gpu else count,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(examples)
    def run(example: _Example) -> None:
        check(example)

    run()
