"""Run torch without the modes of the caller."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Run a block outside the caller's modes, so that its tensors are real tensors.

    This disables modes that intercept functions and operators (a default device, FakeTensorMode),
    inference mode and autocast. A tensor must still specify its dtype, because the default dtype
    is not a mode.
    """
    with (
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield
