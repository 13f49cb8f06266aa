"""Reasons for CUPTI's refusals, and how to resolve them."""

from __future__ import annotations

from typing import Final

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
        "parameter "
        "enable_profiling=1)"
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
        "GPU "
        "performance counters in the NVIDIA control panel"
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
