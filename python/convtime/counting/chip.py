"""Counters that a GPU of this process supports, as reported by CUPTI, and its refusals."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from convtime.core.load import _C
from convtime.counting.results import CountersUnavailable
from convtime.device.provenance import gpu_uuid

_PRIVILEGES = (
    "this user is not permitted to read them; load the driver's kernel module with "
    "NVreg_RestrictProfilingToAdminUsers=0, or run as root or with CAP_SYS_ADMIN "
    "(docker run --cap-add=SYS_ADMIN)"
)

#: By CUPTI's result. Other results are failures rather than states of the machine.
REFUSALS: Final = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": _PRIVILEGES,
    "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": (
        "this virtual machine is not permitted to read them; enable profiling for its vGPU (plugin "
        "parameter enable_profiling=1)"
    ),
    "CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": (
        "this virtual GPU does not support them: use a vGPU type that supports profiling, or GPU "
        "passthrough"
    ),
    "CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED": (
        "the GPU is in confidential computing mode: turn that off, or use its devtools mode"
    ),
    "CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED": (
        "CUPTI does not read them on this MIG instance: use a GPU without MIG"
    ),
    "CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED": "mining cards do not support them: use another GPU",
    "CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED": "the GPU is part of an SLI group: turn SLI off",
    "CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED": (
        "this driver does not support them under WSL: update the driver, and allow access to the "
        "GPU performance counters in the NVIDIA control panel"
    ),
    "CUPTI_ERROR_HARDWARE_BUSY": (
        "another profiler uses them: stop ncu or nsys, or pause DCGM with dcgmi profiling --pause"
    ),
    "CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED": (
        "this process has used CUPTI's old event API, which excludes them: use a fresh process"
    ),
}
#: Results of convtime's core; their text says why.
_TOLD: Final = ("no CUPTI", "kernels uncounted")


def explain(result: str, text: str, device: str) -> str | None:
    """Explain why hardware counters are unavailable, in a sentence; None for another failure.

    Args:
        result: name of CUPTI's result.
        text: additional information.
        device: the GPU.
    """
    if result in _TOLD:
        return f"hardware counters of {device} cannot be read: {text}"
    reason = REFUSALS.get(result)
    if reason is None:
        return None
    return f"hardware counters of {device} cannot be read ({result}): {reason}"


@contextlib.contextmanager
def telling_refusals(device: torch.device) -> Iterator[None]:
    """Explain CUPTI's refusals in a sentence.

    Raises:
        CountersUnavailable: if counters are unavailable in the current state of the machine.
        RuntimeError: for another failure of CUPTI.
    """
    try:
        yield
    except _C.CuptiError as error:
        result, text = error.args
        reason = explain(result, text, str(device))
        if reason is not None:
            raise CountersUnavailable(reason) from error
        raise RuntimeError(f"hardware counters of {device} could not be read: {text}") from error


class GpuChip:
    """The chip of a GPU. It queries each name only once, because CUPTI is slow to start."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._uuid = gpu_uuid(device)

    @property
    def name(self) -> str:
        """Name for messages, e.g. "cuda:0"."""
        return str(self._device)

    def metrics(self) -> Sequence[str]:
        """Return all of its metrics, each with its most common suffix."""
        return _metrics(self._uuid, self._device)

    def describe(self, names: Sequence[str]) -> Sequence[tuple[str, str, str] | None]:
        """Return each metric's description, unit and hardware unit; None for unsupported ones."""
        known = _descriptions(self._uuid)
        if unknown := [name for name in names if name not in known]:
            with telling_refusals(self._device), torch.cuda.device(self._device):
                known.update(zip(unknown, _C.describe_metrics(unknown), strict=True))
        return [known[name] for name in names]


@functools.cache
def _metrics(_uuid: str, device: torch.device) -> tuple[str, ...]:
    with telling_refusals(device), torch.cuda.device(device):
        return tuple(_C.metric_names())


@functools.cache
def _descriptions(_uuid: str) -> dict[str, tuple[str, str, str] | None]:
    """Cache of the descriptions that were queried; callers extend it."""
    return {}
