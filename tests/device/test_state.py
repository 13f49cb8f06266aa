"""The state of processors, memory and GPU, from files and a fake NVML; which device is meant."""

import dataclasses
import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from convtime.core.errors import InputError
from convtime.device import clock_lock, cpu, nvml
from convtime.device import state as machine
from convtime.device.clock_trace import ClockReading
from convtime.device.resolve import resolve_device, resolve_gpu
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


@pytest.mark.parametrize(
    ("params", "capabilities", "may"),
    [
        ("Other: 0\nRmProfilingAdminOnly: 0\n", "0000000000000000", True),
        ("Other: 0\nRmProfilingAdminOnly: 1\n", "0000000000000000", False),
        ("Other: 0\nRmProfilingAdminOnly: 1\n", "000001ffffffffff", True),
        ("Other: 0\n", "000001ffffffffff", None),
        (None, "000001ffffffffff", None),
    ],
)
def test_who_may_read_counters(
    gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
    params: str | None,
    capabilities: str,
    *,
    may: bool | None,
) -> None:
    texts = {
        "/proc/self/status": f"CapEff:\t{capabilities}\n",
        "/proc/self/uid_map": "         0          0 4294967295",
        "/proc/driver/nvidia/params": params,
    }
    monkeypatch.setattr(machine, "_text", lambda path: texts[str(path)])
    assert machine.gpu_state(resolve_gpu(None), None, []).may_read_counters is may


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


def nodes(root: Path, *lists: str) -> Path:
    for number, cpus in enumerate(lists):
        folder = root / "sys/devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    return root


def test_memory_of_another_numa_node_is_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = f"0-{os.cpu_count()}"
    assert cpu.remote_share([torch.ones(3)], nodes(tmp_path / "one", every)) == (None, "")
    two = nodes(tmp_path / "two", every, f"{(os.cpu_count() or 1) + 1}")
    # A quarter is elsewhere; pages without a node do not count.
    monkeypatch.setattr(cpu, "_nodes_of", lambda pages: [1, 0, 0, 0] * 10 + [-2] * 3)
    assert cpu.remote_share([torch.ones(1 << 20)], two) == (0.25, "")
    monkeypatch.setattr(cpu, "_nodes_of", lambda _: None)
    share, why_not = cpu.remote_share([torch.ones(3)], two)
    assert share is None
    assert "NUMA" in why_not


def test_the_node_of_touched_pages_is_told_by_the_system() -> None:
    found = cpu._nodes_of(cpu._pages_of(torch.ones(1 << 20)))
    if found is None:
        pytest.skip("this system does not tell")
    assert len(found) == 64
    assert min(found) >= 0


def test_the_current_gpu_is_meant_and_no_other_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device() == torch.device("cpu")
    with pytest.raises(InputError, match=r"^device 'cuda' is not available: .*; use cpu$"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve_device() == resolve_device("cuda") == torch.device("cuda:1")
    assert resolve_device("cuda:0") == torch.device("cuda:0")
    says = r"^device must be below cuda:2 on this machine, got 'cuda:2'$"
    with pytest.raises(InputError, match=says):
        resolve_device("cuda:2")
    for name in ("gpu", "meta", "cuda:x", ""):
        with pytest.raises(InputError, match=f"^device must be cpu, cuda or .*, got '{name}'$"):
            resolve_device(name)
