"""The state of the processors and the GPU, as the system, NVML and the driver tell it."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from convtime.core.cpu import governors
from convtime.device import clock_lock, nvml
from convtime.results.clock_reading import ClockReading


@dataclasses.dataclass(frozen=True)
class CpuState:
    """What the system says about its processors; None for what it does not tell.

    Attributes:
        governors: the frequency governors in use; none where the system does not say.
        boost: whether the clock may go beyond its base rate.
        boost_switch: the file that says so.
        smt: whether cores run several threads each.
        load: the load average over the last minute.
        cpus: logical CPUs of the machine.
        usable_cpus: those that this process may run on.
        threads: those that PyTorch uses for one operation.
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
    """What NVML and the driver say about a GPU; None for what they do not tell.

    Attributes:
        uuid: what nvidia-smi's ``-i`` takes.
        other_processes: processes beside this one that compute on it.
        utilisation: share of the second before any timing in which it was busy.
        persistence_mode: whether the driver stays loaded without a user.
        ecc: whether its memory corrects errors.
        uncorrected_errors: of its memory, since the driver was loaded.
        mig: whether it is divided into instances.
        throttle_reasons: what kept its clocks down while the operations were timed.
        may_lock_clocks: whether this process has the rights to.
        may_read_counters: whether this process may read hardware counters.
        left_over: what a killed process has left locked; empty for nothing.
    """

    uuid: str
    other_processes: int | None
    utilisation: float | None
    persistence_mode: bool | None
    ecc: bool | None
    uncorrected_errors: int | None
    mig: bool | None
    throttle_reasons: tuple[str, ...]
    may_lock_clocks: bool
    may_read_counters: bool | None
    left_over: str


def cpu_state(root: Path = Path("/")) -> CpuState:
    """Asks the system about its processors.

    Args:
        root: where ``sys`` is.
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
    device: torch.device, utilisation: float | None, readings: Sequence[ClockReading]
) -> GpuState:
    """Asks NVML and the driver about a GPU that this process computes on.

    Args:
        device: the GPU.
        utilisation: as in GpuState, from before.
        readings: of its clocks, while operations were timed.

    Raises:
        NvmlUnavailableError: where NVML cannot be used.
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
            # This process is one of them; a container's may be listed under other numbers.
            other_processes=None
            if processes is None
            else max(0, len({process.pid for process in processes}) - 1),
            utilisation=utilisation,
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


def utilisation(device: torch.device) -> float | None:
    """Share of the last second (or less) in which a GPU was busy; None where that is not known."""
    try:
        with nvml.session(device) as gpu:
            rates = gpu.ask("UtilizationRates")
    except nvml.NvmlUnavailableError:  # which is found out, and said, once more at the end
        return None
    return None if rates is None else rates.gpu / 100


def _is_privileged(status: str | None, uid_map: str | None) -> bool:
    """Whether the driver takes this process for the administrator's; it asks for CAP_SYS_ADMIN.

    Args:
        status: content of ``/proc/self/status``.
        uid_map: content of ``/proc/self/uid_map``; in a user namespace, capabilities are only for
            what belongs to that.
    """
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", status or "", re.MULTILINE)
    in_first_namespace = (uid_map or "").split() == ["0", "0", str(2**32 - 1)]
    return (
        capabilities is not None and bool(int(capabilities[1], 16) >> 21 & 1) and in_first_namespace
    )
