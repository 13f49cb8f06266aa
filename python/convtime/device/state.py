"""The state of the processors and the GPU, as reported by the system, NVML and the driver."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from convtime.core.load import _C
from convtime.device import clock_lock, nvml
from convtime.device.clock_trace import ClockReading
from convtime.device.provenance import governors


@dataclasses.dataclass(frozen=True)
class CpuState:
    """State of the processors as reported by the system; None where it does not report a value.

    Attributes:
        governors: active frequency governors; empty if the system does not report them.
        boost: whether the clock may exceed its base rate.
        boost_switch: path of the file that holds the boost setting.
        smt: whether each core runs several threads.
        load: load average over the last minute.
        cpus: number of logical CPUs of the machine.
        usable_cpus: number of CPUs that this process may run on.
        threads: number of threads that PyTorch uses for one operation.
    """

    governors: tuple[str, ...]
    boost: bool | None
    boost_switch: str | None
    smt: bool | None
    load: float
    cpus: int
    usable_cpus: int
    threads: int


@dataclasses.dataclass(frozen=True)
class GpuState:
    """State of a GPU as reported by NVML and the driver; None where they do not report a value.

    Attributes:
        uuid: UUID as nvidia-smi's ``-i`` takes it.
        other_processes: number of other processes that compute on the GPU.
        utilization: share of the second before any timing in which the GPU was busy.
        persistence_mode: whether the driver stays loaded without a client.
        ecc: whether the memory corrects errors.
        uncorrected_errors: number of uncorrected memory errors since the driver was loaded.
        mig: whether the GPU is divided into MIG instances.
        throttle_reasons: reasons that limited the clocks while the operations were timed.
        may_lock_clocks: whether this process has permission to lock clocks.
        may_read_counters: whether this process may read hardware counters.
        left_over: the clock lock that a killed process left behind; empty for none.
    """

    uuid: str
    other_processes: int | None
    utilization: float | None
    persistence_mode: bool | None
    ecc: bool | None
    uncorrected_errors: int | None
    mig: bool | None
    throttle_reasons: tuple[str, ...]
    may_lock_clocks: bool
    may_read_counters: bool | None
    left_over: str


@dataclasses.dataclass(frozen=True)
class KernelCache:
    """The compiler of convtime's kernels, and the folder of what it has compiled.

    Attributes:
        compiler: NVRTC and its version; empty if it is unavailable.
        compiler_reason: why the compiler is unavailable; empty otherwise.
        folder: folder of the compiled kernels; empty if the user has no cache folder.
        files: number of compiled programs in it.
        nbytes: their size in bytes.
        problem: why nothing can be stored in the folder; empty if it is writable.
    """

    compiler: str
    compiler_reason: str
    folder: str
    files: int
    nbytes: int
    problem: str


def kernel_cache() -> KernelCache | None:
    """Return the state of the kernels' compiler and cache; None in a build without CUDA."""
    fields = _C.kernel_cache()
    return None if fields is None else KernelCache(**fields)


def cpu_state(root: Path = Path("/")) -> CpuState:
    """Query the system about its processors.

    Args:
        root: folder that contains ``sys``.
    """
    system = root / "sys" / "devices" / "system" / "cpu"
    boost, switch = None, None
    for name, on in (("cpufreq/boost", "1"), ("intel_pstate/no_turbo", "0")):
        text = _text(system / name)
        if text is not None:
            boost, switch = text == on, str(system / name)
    smt = _text(system / "smt" / "active")
    return CpuState(
        governors=governors((int(cpu.name[3:]) for cpu in system.glob("cpu[0-9]*")), system),
        boost=boost,
        boost_switch=switch,
        smt=None if smt is None else smt == "1",
        load=os.getloadavg()[0],
        cpus=os.cpu_count() or 1,
        usable_cpus=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
    )


def gpu_state(
    device: torch.device, utilization: float | None, readings: Sequence[ClockReading]
) -> GpuState:
    """Query NVML and the driver about a GPU that this process computes on.

    Args:
        device: the GPU.
        utilization: as in GpuState, measured before the timings.
        readings: clock readings from while operations were timed.

    Raises:
        NvmlUnavailableError: NVML cannot be used.
    """
    reasons = {reason for reading in readings for reason in reading.throttle_reasons or ()}
    privileged = _is_privileged(_text(Path("/proc/self/status")), _text(Path("/proc/self/uid_map")))
    params = _text(Path("/proc/driver/nvidia/params")) or ""
    restricted = re.search(r"^RmProfilingAdminOnly: (\d)", params, re.MULTILINE)
    with nvml.session(device) as gpu:
        processes = gpu.ask("ComputeRunningProcesses_v3")
        ecc = gpu.ask("EccMode")
        mig = gpu.ask("MigMode")
        persistence = gpu.ask("PersistenceMode")
        return GpuState(
            uuid=gpu.uuid,
            # Subtract this process; in a container, NVML may list it under another pid.
            other_processes=None
            if processes is None
            else max(0, len({process.pid for process in processes}) - 1),
            utilization=utilization,
            persistence_mode=None if persistence is None else bool(persistence),
            ecc=None if ecc is None else bool(ecc[0]),
            uncorrected_errors=gpu.ask(
                "TotalEccErrors",
                gpu.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                gpu.nvml.NVML_VOLATILE_ECC,
            ),
            mig=None if mig is None else bool(mig[0]),
            throttle_reasons=tuple(sorted(reasons)),
            may_lock_clocks=privileged,
            may_read_counters=privileged or restricted[1] == "0" if restricted else None,
            left_over=clock_lock.left_over(device),
        )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def utilization(device: torch.device) -> float | None:
    """Return the share of the last second (or less) in which a GPU was busy; None if unknown."""
    try:
        with nvml.session(device) as gpu:
            rates = gpu.ask("UtilizationRates")
    except nvml.NvmlUnavailableError:  # gpu_state reports this error at the end
        return None
    return None if rates is None else rates.gpu / 100


def _is_privileged(status: str | None, uid_map: str | None) -> bool:
    """Return whether the driver treats this process as an administrator: it checks CAP_SYS_ADMIN.

    Args:
        status: content of ``/proc/self/status``.
        uid_map: content of ``/proc/self/uid_map``; inside a user namespace, capabilities apply to
            that namespace only.
    """
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", status or "", re.MULTILINE)
    in_first_namespace = (uid_map or "").split() == ["0", "0", str(2**32 - 1)]
    return (
        capabilities is not None and bool(int(capabilities[1], 16) >> 21 & 1) and in_first_namespace
    )
