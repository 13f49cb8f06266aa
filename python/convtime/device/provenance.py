"""Provenance of a measurement: hardware, software and source state."""

from __future__ import annotations

import functools
import gc
import math
import os
import platform
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from convtime.core.load import _build_info
from convtime.device import proof

_MONITORING_TOOLS = 6
_CPUS = Path("/sys/devices/system/cpu")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Reads only: takes no lock, which a killed git would leave behind, and runs no hook.
_GIT = (
    *("git", "--no-optional-locks"),
    *("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"),
)
# The pytest plugin saves runs next to the tests: they are no part of the measured code.
_WITHOUT_RUNS = ("--", ":(top)", ":(top,exclude,glob)**/.convtime/**")
_GIT_SECONDS = 10.0
_git_states: dict[str, dict[str, Any] | None] = {}


def provenance(device: torch.device, patience: float = math.inf) -> dict[str, Any]:
    """Describe hardware, software and source state.

    The dict is JSON-serializable; an entry is None where it does not apply.

    ``threads`` is PyTorch's thread count per operation. ``cores`` is the number of CPUs that this
    process may run on. ``governor`` and ``load_average`` (running and runnable processes, averaged
    over the last minute) describe the CPU at the time of the call. ``huge_pages`` is Linux's
    setting of transparent huge pages; it is recorded for CPU devices only.

    ``tracers`` names the modules of tools that trace Python calls or lines, such as coverage.
    ``gc`` says whether Python's garbage collector is enabled.

    ``proof`` says which promises were checked on the GPU (see :mod:`convtime.device.proof`).

    Args:
        device: the device that the measured work runs on.
        patience: seconds to wait for git at most; it never waits longer than 10 s.
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
        "proof": proof.status(gpu_uuid(device), versions) if on_gpu else None,
        "cudnn": cudnn_version(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "tracers": ", ".join(tracers()) or None,
        "gc": "enabled" if gc.isenabled() else "disabled",
        "governor": ", ".join(governors(os.sched_getaffinity(0))) or None,
        "load_average": os.getloadavg()[0],
        "huge_pages": None if on_gpu else huge_pages(),
        "git": _working_directory_state(patience),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def tracers() -> list[str]:
    """List the active tools that slow down Python calls, e.g. ``sys.settrace (coverage)``."""
    tools = []
    for setter, active in (("settrace", sys.gettrace()), ("setprofile", sys.getprofile())):
        if active is not None:
            tools.append(f"sys.{setter} ({_tool_of(active)})")
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    if monitoring is not None:
        names = (monitoring.get_tool(number) for number in range(_MONITORING_TOOLS))
        tools += [f"sys.monitoring ({name})" for name in names if name is not None]
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        tools.append("torch.profiler")
    return tools


def _tool_of(function: object) -> str:
    """Return the package that defines a function of ``sys.settrace`` or ``sys.setprofile``."""
    if isinstance(function, types.MethodType):  # a method's module may be that of a base class
        function = type(function.__self__)
    elif not hasattr(function, "__code__"):
        function = type(function)
    module = getattr(function, "__module__", None)
    package = module.partition(".")[0] if isinstance(module, str) else "unknown"
    return "pydevd" if package.lstrip("_").startswith("pydevd") else package


def gpu_uuid(device: torch.device) -> str:
    """Return the GPU's UUID, which is independent of CUDA_VISIBLE_DEVICES."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


@functools.cache
def driver_version() -> str | None:
    """Return the GPU driver's version, or None if NVML is unavailable."""
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
    """Return the version of the cuDNN that torch has loaded, e.g. "9.19.0"."""
    number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None  # type: ignore[no-untyped-call]
    if number is None:
        return None
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _working_directory_state(patience: float) -> dict[str, Any] | None:
    try:
        return git_state(os.getcwd(), patience)
    except OSError:  # a deleted working directory must not prevent a measurement
        return None


def git_state(folder: str, patience: float = math.inf) -> dict[str, Any] | None:
    """Return commit and dirty flag of the git repository at ``folder``; None outside a repository.

    The flag is None if git takes longer than ``patience`` or 10 s; changes in folders ``.convtime``
    do not count. Cached per process: the relevant source state is the state at import.
    """
    if folder not in _git_states:
        _git_states[folder] = _read_git(folder, min(patience, _GIT_SECONDS))
    return _git_states[folder]


def _read_git(folder: str, patience: float) -> dict[str, Any] | None:
    end = time.monotonic() + patience

    def git(*args: str) -> str | None:
        try:
            return subprocess.run(
                [*_GIT, *args],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=max(0.0, end - time.monotonic()),
            ).stdout.strip()
        except TimeoutError:
            raise  # by the caller's handler of a signal: a process does not fail to start so
        except (OSError, subprocess.SubprocessError):
            return None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    status = git("status", "--porcelain", *_WITHOUT_RUNS)
    return {"commit": commit, "dirty": None if status is None else bool(status)}


@functools.cache
def _governor_files(cpus: frozenset[int], root: Path) -> list[Path]:
    paths = (root / f"cpu{cpu}" / "cpufreq" / "scaling_governor" for cpu in cpus)
    return [path for path in paths if path.exists()]


@functools.cache
def cpu_name() -> str:
    """Return the processor's model name, or its architecture if the system reports no name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def governors(cpus: Iterable[int], root: Path = _CPUS) -> tuple[str, ...]:
    """Return the CPUs' frequency governors, e.g. "performance"; several names if they differ.

    The tuple is empty if the system does not report them, as in most virtual machines.
    """
    return tuple(
        sorted({path.read_text().strip() for path in _governor_files(frozenset(cpus), root)})
    )


def huge_pages(setting: Path = _HUGE_PAGES) -> str | None:
    """Return the transparent huge pages setting (``always``, ``madvise``, ``never``), or None."""
    try:
        chosen = re.search(r"\[(\w+)\]", setting.read_text())
    except OSError:  # the kernel was built without them
        return None
    return chosen and chosen[1]
