"""What tests of ops share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def repeatable() -> Iterator[None]:
    """Leaves out cuDNN's engines whose sums come out differently from run to run."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield
