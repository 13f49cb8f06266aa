"""What the doctor sees, and what it makes of it."""

import dataclasses
import itertools
import json
import os
import statistics
import types

import pytest
import torch

import convtime
from convtime import cli
from convtime.core import codec
from convtime.device import clock_lock, nvml
from convtime.device import state as machine
from convtime.device.clock_reading import ClockReading
from convtime.device.resolve import resolve_gpu
from convtime.device.state import CpuState, GpuState, KernelCache
from convtime.health import doctor
from convtime.health.examination import Examination, KnownDuration, OperationTiming
from convtime.health.findings import find
from convtime.health.survey import Survey, survey
from convtime.timing.condition import Condition
from convtime.timing.measurement import Ceilings

GOOD_CPU = CpuState(("performance",), False, "/sys/boost", False, 0.5, 16, 16, 16)
GOOD_GPU = GpuState(
    uuid="GPU-1",
    other_processes=0,
    utilization=0.0,
    persistence_mode=True,
    ecc=True,
    uncorrected_errors=0,
    mig=False,
    throttle_reasons=("gpu_idle",),
    may_lock_clocks=True,
    may_read_counters=True,
    left_over="",
)
GOOD_CACHE = KernelCache("NVRTC 13.0", "", "/home/user/.cache/convtime/kernels", 3, 90_000, "")
GOOD = Examination(
    cpu=GOOD_CPU,
    gpu=GOOD_GPU,
    gpu_reason="",
    known_durations=(
        KnownDuration("kernel", 80e-6, 80.03e-6, 0.001),
        KnownDuration("event", 80e-6, 79.8e-6, 0.002),
    ),
    operations=(
        OperationTiming("matmul", "kernel", "as-is", 170e-6, 0.01, (169e-6, 171e-6)),
        OperationTiming("matmul", "sync", "as-is", 190e-6, 0.4, (180e-6, 200e-6)),
    ),
    ceilings=Ceilings(4.3e12, 790e12, "bfloat16"),
    seconds=12.0,
    provenance={"gpu": "NVIDIA H200", "cpu": "a CPU", "torch": "2.11.0"},
    kernel_cache=GOOD_CACHE,
)


def test_a_good_machine_has_no_advice():
    assert {finding.status for finding in find(GOOD)} == {"ok"}
    assert GOOD.passed


def test_says_where_compiled_kernels_are_and_how_large():
    found = {finding.check: finding.message for finding in find(GOOD)}
    assert found["kernel compiler"] == "is NVRTC 13.0"
    assert found["kernel cache"] == "/home/user/.cache/convtime/kernels has 3 programs, 0.1 MB"


@pytest.mark.parametrize(
    ("change", "check", "status"),
    [
        ({"problem": "cannot write to /home: Read-only file system"}, "kernel cache", "advice"),
        ({"compiler_reason": "cannot open libnvrtc.so.13"}, "kernel compiler", "failed"),
    ],
)
def test_says_why_kernels_are_compiled_again_or_never(change, check, status):
    seen = dataclasses.replace(GOOD, kernel_cache=dataclasses.replace(GOOD_CACHE, **change))
    (finding,) = (finding for finding in find(seen) if finding.check == check)
    assert finding.status == status
    assert next(iter(change.values())) in finding.message
    assert finding.advice


def cpu(**change):
    return dataclasses.replace(GOOD, cpu=dataclasses.replace(GOOD_CPU, **change))


def on_gpu(**change):
    return dataclasses.replace(GOOD, gpu=dataclasses.replace(GOOD_GPU, **change))


def known(*durations):
    return dataclasses.replace(GOOD, known_durations=durations)


def operations(*timings):
    return dataclasses.replace(GOOD, operations=timings)


BURST = OperationTiming("matmul", "kernel", "burst", 172e-6, 0.01, (171e-6, 173e-6))
SUSTAINED = OperationTiming("matmul", "kernel", "sustained", 198e-6, 0.01, (197e-6, 199e-6))


@pytest.mark.parametrize(
    ("seen", "check", "status", "message", "advice"),
    [
        (known(KnownDuration("kernel", 80e-6, 80.14e-6, 0)), "method kernel", "failed",
         "timed 140.0 ns too long", "stop other work"),
        (known(KnownDuration("event", 80e-6, 79.7e-6, 0)), "method event", "failed",
         "timed 300.0 ns too short", "stop other work"),
        (known(KnownDuration("cpu", 400e-6, 410e-6, 0)), "method cpu", "failed",
         "timed 10.00 µs too long", ""),
        (known(KnownDuration("sync", 80e-6, 74.7e-6, 0, (74.2e-6, 74.9e-6))), "method sync",
         "failed", "timed 5.300 µs too short", "again"),
        (known(KnownDuration("sync", 80e-6, 74.7e-6, 0, (74.2e-6, 75.1e-6))), "method sync",
         "advice", "timed 5.300 µs too short", "again"),
        (known(KnownDuration("sync", 80e-6, 86e-6, 0, (84.9e-6, 88e-6))), "method sync",
         "advice", "timed 6.000 µs too long", "again"),
        (known(KnownDuration("kernel", 80e-6, None, None, reason="CUPTI is taken")),
         "method kernel", "advice", "cannot be used: CUPTI is taken", "method='auto'"),
        (operations(OperationTiming("relu", "kernel", "as-is", 1e-6, 0.06, (1e-6, 1e-6))),
         "spread", "advice", "range of relu is 6.0%", "convtime.compare"),
        (operations(OperationTiming("relu", "cpu", "as-is", 1e-6, 0.6, (1e-6, 1e-6))),
         "spread", "failed", "range of relu is 60.0%", "convtime.compare"),
        (operations(
            OperationTiming("relu", "kernel", "as-is", None, None, None, "CUPTI is taken"),
            OperationTiming("relu", "event", "as-is", 1e-6, 0.07, (1e-6, 1e-6))),
         "spread", "advice", "7.0% of its median (method event)", ""),
        (operations(BURST, SUSTAINED), "regimes", "advice",
         "takes 172.0 µs in burst and 198.0 µs sustained", "regime='burst'"),
        (operations(BURST, dataclasses.replace(BURST, regime="sustained")), "regimes", "ok",
         "same time in burst and sustained", ""),
        (operations(BURST, OperationTiming("matmul", "auto", "sustained", None, None, None, "hot")),
         "regime sustained", "advice", "was not reached: hot", "sm_clocks_hz"),
        (on_gpu(other_processes=2), "other processes", "failed", "2 other processes", "stop them"),
        (on_gpu(utilization=0.3), "utilization", "advice", "busy for 30%", "nvidia-smi"),
        (on_gpu(throttle_reasons=("gpu_idle", "sw_power_cap")), "throttling", "advice",
         "lowered by sw_power_cap", "regime="),
        (on_gpu(throttle_reasons=("hw_thermal_slowdown", "sw_power_cap")), "throttling", "failed",
         "lowered by hw_thermal_slowdown, sw_power_cap", "cooling"),
        (on_gpu(uncorrected_errors=3), "ECC", "failed", "3 uncorrected errors", "replaced"),
        (on_gpu(ecc=False), "ECC", "ok", "is off", ""),
        (on_gpu(mig=True), "MIG", "advice", "divided into instances", "idle"),
        (on_gpu(persistence_mode=False), "persistence mode", "advice", "is off",
         "sudo nvidia-smi -i GPU-1 -pm 1"),
        (on_gpu(may_lock_clocks=False), "locking clocks", "advice", "lacks permission",
         "sudo nvidia-smi -i GPU-1 -lgc tdp,tdp"),
        (on_gpu(may_read_counters=False), "hardware counters", "advice", "RmProfilingAdminOnly",
         "NVreg_RestrictProfilingToAdminUsers=0"),
        (on_gpu(left_over="process 7 left it"), "locked clocks", "failed", "process 7 left it", ""),
        (dataclasses.replace(GOOD, gpu=None, gpu_reason="no driver"), "NVML", "advice", "no driver",
         "libnvidia-ml"),
        (cpu(governors=("performance", "powersave")), "CPU governor", "advice", "is powersave",
         "cpupower frequency-set -g performance"),
        (cpu(boost=True), "CPU boost", "advice", "is on", "echo 0 | sudo tee /sys/boost"),
        (cpu(boost=True, boost_switch="/sys/no_turbo"), "CPU boost", "advice", "is on",
         "echo 1 | sudo tee /sys/no_turbo"),
        (cpu(smt=True), "CPU threads per core", "advice", "several threads", "taskset"),
        (cpu(load=8.1), "CPU load", "advice", "is 8.1 on 16 CPUs", "wait"),
        (cpu(usable_cpus=4), "CPU threads", "advice", "16 threads on 4 usable CPUs",
         "torch.set_num_threads(4)"),
    ],
)  # fmt: skip
def test_each_fault_is_found_and_nothing_else(seen, check, status, message, advice):
    (finding,) = [found for found in find(seen) if found.check == check]
    assert finding.status == status
    assert message in finding.message
    assert advice in finding.advice
    assert seen.passed == (status != "failed")
    others = [found for found in find(seen) if found.check != check]
    assert {found.status for found in others} <= {"ok"}


def test_what_is_not_known_is_not_judged():
    nothing = GpuState("GPU-1", None, None, None, None, None, None, (), True, None, "")
    cpu = CpuState((), None, None, None, 0.5, 16, 16, 16)
    seen = dataclasses.replace(GOOD, gpu=nothing, cpu=cpu, kernel_cache=None)
    told = {finding.check for finding in find(seen)}
    assert told == {
        "method kernel", "method event", "spread", "throttling", "locking clocks", "CPU load",
        "CPU threads",
    }  # fmt: skip


def test_the_text_has_each_row_and_each_finding():
    seen = dataclasses.replace(GOOD, operations=(*GOOD.operations, BURST))
    seen = dataclasses.replace(seen, gpu=dataclasses.replace(GOOD_GPU, uncorrected_errors=3))
    lines = [" ".join(line.split()) for line in str(seen).splitlines()]
    assert lines[0] == "NVIDIA H200; torch 2.11.0"
    assert "kernel 80.00 µs 80.03 µs +30 ns 0.10%" in lines
    assert "median ± IQR kernel sync burst" in lines
    assert "matmul 170.0 µs ± 1.0% 190.0 µs ± 40.0% 172.0 µs ± 1.0%" in lines
    assert "ceilings: copy 4,300 GB/s, bfloat16 matmul 790 TFLOP/s" in lines
    told = "failed ECC: the GPU's memory had 3 uncorrected errors: have the GPU reset or replaced"
    assert told in lines
    assert lines[-1].endswith("in 12.0 s: 1 failed, 0 with advice")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_the_processors_state_is_read_from_the_system(tmp_path):
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
        ("0000000000000000", "         0          0 4294967295", False),
    ],
)
def test_who_may_lock_clocks(capabilities, uid_map, privileged):
    status = f"Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{capabilities}\nSeccomp:\t0"
    assert machine._is_privileged(status, uid_map) is privileged
    assert machine._is_privileged(None, None) is False


def test_the_gpus_state_is_asked_of_nvml(gpu):
    gpu.answers |= {
        "ComputeRunningProcesses_v3": [types.SimpleNamespace(pid=pid) for pid in (7, 7, 8, 9)],
        "EccMode": [1, 0],
        "TotalEccErrors": lambda kind, counter: {(1, 0): 5}[kind, counter],
        "PersistenceMode": 0,
        "MigMode": [0, 0],
        "UtilizationRates": types.SimpleNamespace(gpu=40),
    }
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
        left_over="",
    )


def test_a_gpu_that_tells_nothing(gpu):
    device = resolve_gpu(None)
    state = machine.gpu_state(device, machine.utilization(device), [])
    assert (state.other_processes, state.utilization, state.ecc) == (None, None, None)
    gpu.failures["Init"] = gpu.NVMLError_DriverNotLoaded()
    assert machine.utilization(device) is None
    with pytest.raises(nvml.NvmlUnavailableError, match="Driver Not Loaded"):
        machine.gpu_state(device, None, [])


def test_the_gpus_state_tells_what_was_left_locked(gpu, monkeypatch):
    monkeypatch.setattr(clock_lock, "left_over", lambda _device: "process 7 ended")
    assert machine.gpu_state(resolve_gpu(None), None, []).left_over == "process 7 ended"


def test_a_method_that_cannot_be_used_does_not_stop_the_doctor(monkeypatch):
    def fail(*_args, **_options):
        raise RuntimeError("CUPTI is\ntaken")

    monkeypatch.setattr(doctor, "time_op", fail)
    monkeypatch.setattr(doctor, "measure", fail)
    (known,) = doctor._known_durations(torch.device("cpu"))
    assert (known.error, known.reason) == (None, "CUPTI is taken")
    timed = list(doctor._operations(torch.device("cpu")))
    assert len(timed) == 4
    assert {(timing.median, timing.reason) for timing in timed} == {(None, "CUPTI is taken")}


# What the host took to launch and to wait for relu, in microseconds, by `peers.sync` less `kernel`
# of one timing after the other of benchmarks/results/accuracy.json (H200).
HOST_MICROSECONDS = [18.1, 22.3, 14.7, 29.6, 15.9, 16.2]


def test_a_host_whose_cost_drifts_from_timing_to_timing_fails_no_method(monkeypatch):
    costs = itertools.cycle(HOST_MICROSECONDS)

    def measure(candidates, options):
        cost = next(costs)
        return [spun(candidate.args[0], cost) for candidate in candidates]

    def spun(nanoseconds, cost):
        seconds = [1e-9 * nanoseconds + 1e-6 * (cost + 0.1 * (each % 3)) for each in range(20)]
        median = statistics.median(seconds)
        return types.SimpleNamespace(
            seconds=seconds, batches=range(20), clock_tick=0.0, median=median, iqr=1e-7
        )

    monkeypatch.setattr(doctor, "measure", measure)
    monkeypatch.setattr(  # one after the other
        doctor, "time_op", lambda _fn, nanoseconds, **_: spun(nanoseconds, next(costs))
    )
    monkeypatch.setattr(doctor, "_GPU_METHODS", ("sync",) * 6)
    found = list(doctor._known_durations(torch.device("cuda", 0)))
    assert len(found) == 6
    for each in found:
        assert each.expected == pytest.approx(80e-6)
        assert each.measured == pytest.approx(80e-6)
        low, high = each.interval
        assert low <= each.measured <= high
    assert known(*found).passed


@pytest.mark.parametrize("reached", [True, False])
def test_a_regime_that_was_not_reached_has_no_time(monkeypatch, reached):
    def time_op(_fn, *, regime, **_options):
        return types.SimpleNamespace(
            regime=Condition(regime, regime)
            if reached
            else Condition("as-is", regime, "the clock fell"),
            method=Condition("kernel", "auto"),
            median=2e-6,
            iqr=1e-7,
            median_interval=(1e-6, 3e-6),
        )

    monkeypatch.setattr(doctor, "time_op", time_op)
    timed = doctor._timed("matmul", print, torch.device("cuda"), "auto", "burst")
    expected = OperationTiming("matmul", "kernel", "burst", 2e-6, 0.05, (1e-6, 3e-6))
    if not reached:
        expected = OperationTiming("matmul", "auto", "burst", None, None, None, "the clock fell")
    assert timed == expected


@pytest.mark.timing
def test_on_a_cpu_the_command_prints_its_findings(capsys):
    code = cli.main(["doctor", "--device", "cpu", "--json", "-"])
    seen = json.loads(capsys.readouterr().out)
    assert code == (0 if seen["passed"] else 1)
    assert seen["schema"] == codec.SCHEMA
    assert seen["gpu"] is None
    (known,) = seen["known_durations"]
    assert known["expected"] == pytest.approx(400e-6)
    assert known["measured"] == pytest.approx(400e-6, rel=0.2)  # of a machine that may be busy
    assert [operation["method"] for operation in seen["operations"]] == ["cpu"] * 4
    assert all(operation["median"] > 0 for operation in seen["operations"])
    assert {"method cpu", "CPU load", "CPU threads"} <= {
        finding["check"] for finding in seen["findings"]
    }


@pytest.mark.parametrize(("errors", "code"), [(0, 0), (3, 1)])
def test_the_exit_code_says_whether_a_check_failed(monkeypatch, capsys, errors, code):
    seen = dataclasses.replace(GOOD, gpu=dataclasses.replace(GOOD_GPU, uncorrected_errors=errors))
    monkeypatch.setattr("convtime.cli.doctor.doctor", lambda _device: seen)
    assert cli.main(["doctor", "--device", "cpu"]) == code
    assert "NVIDIA H200" in capsys.readouterr().out


@pytest.mark.timing
@pytest.mark.cuda
def test_on_a_gpu_each_method_is_checked():
    seen = convtime.doctor("cuda:0")
    print(seen)  # for whoever reads the log of a machine that does not pass
    assert seen.seconds < 20
    assert seen.gpu is not None
    assert seen.gpu.uuid == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    assert [duration.method for duration in seen.known_durations] == [
        "kernel",
        "event",
        "graph",
        "sync",
        "cpu",
    ]
    assert not any(duration.reason for duration in seen.known_durations)
    assert not any(timing.median is None for timing in seen.operations), seen
    methods = [finding for finding in find(seen) if finding.check.startswith("method ")]
    assert {finding.status for finding in methods} == {"ok"}
    kernel, event = (
        {timing.name: timing.median for timing in seen.operations if timing.method == method}
        for method in ("kernel", "event")
    )
    assert len(kernel) == 4
    for name, median in kernel.items():
        assert event[name] == pytest.approx(median, rel=0.3, abs=0.5e-6)
    json.dumps(seen.to_dict(), allow_nan=False)
    assert convtime.ceilings("cuda") == seen.ceilings


def surveyed(gpu, monkeypatch, **answers) -> Survey:
    """All GPUs, which are one, with NVML's answers."""
    usual = {
        "Name": "NVIDIA H200",
        "EccMode": [1, 1],
        "TotalEccErrors": lambda *_: 0,
        "CurrPcieLinkWidth": 16,
        "MaxPcieLinkWidth": 16,
        "MaxClockInfo": lambda _: 1980,
        "CurrPcieLinkGeneration": 1,
        "MaxPcieLinkGeneration": 5,
        "NvLinkState": lambda link: 1 if link < 18 else gpu.NVMLError_InvalidArgument(),
    }
    for name, answer in {**usual, **answers}.items():
        monkeypatch.setitem(gpu.answers, name, answer)
    monkeypatch.setattr("convtime.health.survey.provenance", lambda _device: {})
    return survey()


def test_all_gpus_and_links_are_surveyed(gpu, monkeypatch) -> None:
    seen = surveyed(gpu, monkeypatch)
    assert seen.passed
    assert Survey.from_dict(seen.to_dict()) == seen
    printed = str(seen)
    for text in ("NVIDIA H200", "16 of 16 lanes", "generation 1 of 5", "18 of 18 active", "41 °C"):
        assert text in printed


@pytest.mark.parametrize(
    ("answers", "status", "word"),
    [
        ({"CurrPcieLinkWidth": 8}, "failed", "8 of 16 lanes"),
        ({"TotalEccErrors": lambda *_: 3}, "failed", "3 uncorrectable"),
        ({"CurrentClocksEventReasons": 0x40}, "failed", "hw_thermal_slowdown"),
        ({"NvLinkState": lambda link: int(link != 5)}, "advice", "links are inactive: 5"),
    ],
)
def test_a_survey_finds_what_is_wrong(gpu, monkeypatch, answers, status, word) -> None:
    seen = surveyed(gpu, monkeypatch, **answers)
    (wrong,) = [finding for finding in seen.findings if finding.status != "ok"]
    assert (wrong.status, word in wrong.message) == (status, True)
    assert seen.passed is (status == "advice")


def test_a_gpu_unlike_its_siblings_is_named(gpu, monkeypatch) -> None:
    (first,) = surveyed(gpu, monkeypatch).gpus
    slower = dataclasses.replace(first, device="cuda:1", max_sm_clock_hz=1.5e9)
    seen = Survey((first, slower, dataclasses.replace(first, device="cuda:2")), {})
    (found,) = [finding for finding in seen.findings if finding.status != "ok"]
    assert found.check == "cuda:1 siblings"
    assert "1500 MHz" in found.message


def test_a_survey_needs_a_gpu_and_nothing_else(capsys, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["doctor", "--all"]) == 2
    assert "PyTorch finds none" in capsys.readouterr().err
    assert cli.main(["doctor", "--all", "--device", "cpu"]) == 2
    assert "leave out --device" in capsys.readouterr().err
