"""Torch as it is by itself, whatever modes the caller is in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Runs a block outside of the caller's modes, so that its tensors are real ones.

    Off are modes that intercept functions and operators (a default device, FakeTensorMode),
    inference mode and autocast. A tensor still has to name its dtype, whose default is no mode.
    """
    with (
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield
