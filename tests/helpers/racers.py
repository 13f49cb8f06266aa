"""Candidates of a race that can be sent to another process."""

from __future__ import annotations

import os
import time

import torch


def add(x: torch.Tensor) -> torch.Tensor:
    return x + x


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def abort(x: torch.Tensor) -> torch.Tensor:
    os.abort()


def never_return(x: torch.Tensor) -> torch.Tensor:
    while True:
        time.sleep(1)


def fail(x: torch.Tensor) -> torch.Tensor:
    raise ArithmeticError("no result for this input")


def access_illegally(x: torch.Tensor) -> torch.Tensor:
    """Index out of range, which ends the CUDA context with an assertion on the device."""
    return x[torch.full((1,), 1 << 40, device=x.device)]


def spin_forever(x: torch.Tensor) -> torch.Tensor:
    torch.cuda._sleep(1 << 50)  # a week
    return x  # a kernel that is not loaded yet would wait for the end of that week
