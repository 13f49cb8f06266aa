"""Resolve a user's device argument to a torch device."""

from __future__ import annotations

import torch

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.device.nvml import NvmlUnavailableError


def resolve_device(requested: torch.device | str | int | None = None) -> torch.device:
    """Return the CPU device, or a CUDA device with its index.

    Args:
        requested: a CPU or CUDA device. Default: the current GPU, or the CPU if there is no GPU.

    Raises:
        InputError: the device is of another kind, or the GPU does not exist.
    """
    if requested is None:
        requested = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(requested)
    except (RuntimeError, TypeError):
        raise InputError(f"device must be cpu, cuda or cuda:N, got {_quoted(requested)}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    require(device.type == "cuda", f"device must be cpu, cuda or cuda:N, got {_quoted(requested)}")
    why = (
        "this PyTorch was built without CUDA"
        if torch.version.cuda is None
        else "PyTorch finds no GPU that it can use"
    )
    require(
        torch.cuda.is_available(),
        f"device {_quoted(requested)} is not available: {why}; use cpu",
    )
    index = torch.cuda.current_device() if device.index is None else device.index
    count = torch.cuda.device_count()
    require(
        0 <= index < count,
        f"device must be below cuda:{count} on this machine, got {_quoted(requested)}",
    )
    return torch.device("cuda", index)


def resolve_gpu(requested: torch.device | str | int | None = None) -> torch.device:
    """Return the CUDA device with its index; the current one for None.

    Raises:
        InputError: the argument does not name a CUDA device of this process.
        NvmlUnavailableError: the process has no CUDA device at all.
    """
    if not torch.cuda.is_available():
        raise NvmlUnavailableError("there is no CUDA device")
    device = resolve_device(requested)
    require(device.type == "cuda", f"device must be a CUDA device, got {_quoted(requested)}")
    return device


def _quoted(requested: object) -> str:
    return repr(str(requested) if isinstance(requested, torch.device) else requested)
