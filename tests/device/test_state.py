"""The state of the processors and of the GPU, from files and a fake NVML."""

from __future__ import annotations

import dataclasses
import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from convtime.device import clock_lock, nvml
from convtime.device import state as machine
from convtime.device.clock_reading import ClockReading
from convtime.device.resolve import resolve_gpu
from convtime.device.state import GpuState


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_the_processors_state_is_read_from_the_system(tmp_path: Path) -> None:
    system = tmp_path / "sys/devices/system/cpu"
    write(system / "cpu0/cpufreq/scaling_governor", "powersave")
    write(system / "cpu11/cpufreq/scaling_governor", "performance")
    write(system / "intel_pstate/no_turbo", "0")
    write(system / "smt/active", "1")
    state = machine.cpu_state(tmp_path)
    assert state.governors == ("performance", "powersave")
    assert (state.boost, state.boost_switch) == (True, str(system / "intel_pstate/no_turbo"))
    assert state.smt is True
    assert state.usable_cpus == len(os.sched_getaffinity(0))
    assert state.threads == torch.get_num_threads()
    (system / "intel_pstate/no_turbo").unlink()
    write(system / "cpufreq/boost", "0")
    assert machine.cpu_state(tmp_path).boost is False
    nothing = machine.cpu_state(tmp_path / "none")
    assert (nothing.governors, nothing.boost, nothing.smt) == ((), None, None)


@pytest.mark.parametrize(
    ("capabilities", "uid_map", "privileged"),
    [
        ("000001ffffffffff", "         0          0 4294967295", True),
        ("00000000a80425fb", "         0          0 4294967295", False),  # a container's root
        ("0000000000200000", "         0          0 4294967295", True),
        ("000001ffffffffff", "         0     100000      65536", False),  # a user namespace's root
    ],
)
def test_who_may_lock_clocks(capabilities: str, uid_map: str, *, privileged: bool) -> None:
    status = f"Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{capabilities}\nSeccomp:\t0"
    assert machine._is_privileged(status, uid_map) is privileged
    assert machine._is_privileged(None, None) is False


def test_the_gpus_state_is_asked_of_nvml(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.answers |= {
        "ComputeRunningProcesses_v3": [types.SimpleNamespace(pid=pid) for pid in (7, 7, 8, 9)],
        "EccMode": [1, 0],
        "TotalEccErrors": lambda kind, counter: {(1, 0): 5}[kind, counter],
        "PersistenceMode": 0,
        "MigMode": [0, 0],
        "UtilizationRates": types.SimpleNamespace(gpu=40),
    }
    monkeypatch.setattr(clock_lock, "left_over", lambda _device: "process 7 ended")
    device = resolve_gpu(None)
    readings = [
        ClockReading(0, None, None, None, None, reasons)
        for reasons in (("sw_power_cap",), None, ("gpu_idle", "sw_power_cap"))
    ]
    state = machine.gpu_state(device, machine.utilization(device), readings)
    assert dataclasses.replace(state, may_lock_clocks=True, may_read_counters=None) == GpuState(
        uuid=gpu.UUID,
        other_processes=2,  # without this one
        utilization=0.4,
        persistence_mode=False,
        ecc=True,
        uncorrected_errors=5,
        mig=False,
        throttle_reasons=("gpu_idle", "sw_power_cap"),
        may_lock_clocks=True,
        may_read_counters=None,
        left_over="process 7 ended",
    )


def test_a_gpu_that_tells_nothing(gpu: Any) -> None:
    device = resolve_gpu(None)
    state = machine.gpu_state(device, machine.utilization(device), [])
    assert (state.other_processes, state.utilization, state.ecc) == (None, None, None)
    gpu.failures["Init"] = gpu.NVMLError_DriverNotLoaded()
    assert machine.utilization(device) is None
    with pytest.raises(nvml.NvmlUnavailableError, match="Driver Not Loaded"):
        machine.gpu_state(device, None, [])
