"""Factories of sweeps that can be sent to other processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import torch


def relu(size: int) -> Callable[[], object]:
    x = torch.ones(size)
    return lambda: torch.relu(x)


def double(size: int) -> Callable[[], object]:
    x = torch.ones(size)
    return lambda: x + x


def raise_unsendable() -> None:
    """Raise an error that cannot be pickled, because its type has no name in the module."""

    class UnsendableError(Exception):
        pass

    raise UnsendableError("it failed\nhere")


def deadly(size: int) -> Callable[[], object]:
    """End the process at the size of 3."""
    if size == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return relu(size)
