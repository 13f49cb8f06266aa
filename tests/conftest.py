"""What all tests share: the rule for tests that need a GPU."""

from __future__ import annotations

import os

import pytest
import torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None or torch.cuda.is_available():
        return
    if os.environ.get("FAIL_WITHOUT_CUDA") == "1":
        pytest.fail("FAIL_WITHOUT_CUDA=1 and there is no CUDA device", pytrace=False)
    pytest.skip("there is no CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each kind of device that convtime knows."""
    return torch.device(request.param)
