"""Where and with what a measurement was made."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import types
from datetime import datetime, timezone
from typing import Any

import torch

from convtime.core import proof
from convtime.core.cpu import cpu_name, governors, huge_pages
from convtime.core.load import _build_info

_MONITORING_TOOLS = 6


def provenance(device: torch.device) -> dict[str, Any]:
    """Describes hardware, software and source state; JSON-ready, None for what does not apply.

    ``threads`` are those of PyTorch for one operation, ``cores`` those that this process may run
    on. ``governor`` and ``load_average`` (processes that ran or wanted to, on average over the last
    minute) are the CPU's, at this moment. ``huge_pages`` is Linux' setting of transparent huge
    pages, for work on the CPU alone.

    ``tracers`` are what Python tells of each call or line, such as coverage, by their modules;
    ``gc`` says whether Python's garbage collector is enabled.

    ``proof`` says which promises were checked on the GPU (see :mod:`convtime.core.proof`).

    Args:
        device: the device that the measured work runs on.
    """
    on_gpu = device.type == "cuda"
    versions = {
        "driver": driver_version() if on_gpu else None,
        "cuda": torch.version.cuda,
        "torch": str(torch.__version__),
        "convtime": _build_info.version,
    }
    return {
        "gpu": torch.cuda.get_device_name(device) if on_gpu else None,
        "gpu_uuid": gpu_uuid(device) if on_gpu else None,
        **versions,
        "proof": proof.told(gpu_uuid(device), versions) if on_gpu else None,
        "cudnn": cudnn_version(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "tracers": ", ".join(tracers()) or None,
        "gc": "enabled" if gc.isenabled() else "disabled",
        "governor": ", ".join(governors(os.sched_getaffinity(0))) or None,
        "load_average": os.getloadavg()[0],
        "huge_pages": None if on_gpu else huge_pages(),
        "git": _working_directory_state(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def tracers() -> list[str]:
    """What slows Python's calls down at this moment, as ``sys.settrace (coverage)``."""
    found = []
    for setter, active in (("settrace", sys.gettrace()), ("setprofile", sys.getprofile())):
        if active is not None:
            found.append(f"sys.{setter} ({_tool_of(active)})")
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    if monitoring is not None:
        tools = (monitoring.get_tool(tool) for tool in range(_MONITORING_TOOLS))
        found += [f"sys.monitoring ({tool})" for tool in tools if tool is not None]
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        found.append("torch.profiler")
    return found


def _tool_of(function: object) -> str:
    """The package that a function of ``sys.settrace`` or ``sys.setprofile`` is from."""
    if isinstance(function, types.MethodType):  # whose own module may be that of a base class
        function = type(function.__self__)
    elif not hasattr(function, "__code__"):
        function = type(function)
    module = getattr(function, "__module__", None)
    package = module.partition(".")[0] if isinstance(module, str) else "unknown"
    return "pydevd" if package.lstrip("_").startswith("pydevd") else package


def gpu_uuid(device: torch.device) -> str:
    """What a GPU is known by, whatever number CUDA_VISIBLE_DEVICES gives it."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


@functools.cache
def driver_version() -> str | None:
    """The GPU driver's version, or None where NVML is not to be had."""
    import pynvml  # only where there is a GPU

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


@functools.cache
def cudnn_version() -> str | None:
    """The version of the cuDNN that torch has loaded, as "9.19.0"."""
    number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None  # type: ignore[no-untyped-call]
    if number is None:
        return None
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _working_directory_state() -> dict[str, Any] | None:
    try:
        return git_state(os.getcwd())
    except OSError:  # the directory was deleted, which is no reason not to measure
        return None


@functools.cache
def git_state(folder: str) -> dict[str, Any] | None:
    """Commit and dirty flag of the git repository around ``folder``; None where there is none.

    Asked once a process: the source state that counts is the one that was imported.
    """

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], cwd=folder, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
