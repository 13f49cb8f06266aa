"""What is made of an examination: each fault is found, and nothing else."""

import dataclasses
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from convtime import cli
from convtime.device.state import CpuState, GpuState, KernelCache
from convtime.health.examination import Examination, KnownDuration, OperationTiming
from convtime.timing.measurement import Ceilings

GOOD_CPU = CpuState(("performance",), False, "/sys/boost", False, 0.5, 16, 16, 16)
GOOD_GPU = GpuState(
    uuid="GPU-1", other_processes=0, utilization=0.0, persistence_mode=True, ecc=True,
    uncorrected_errors=0, mig=False, throttle_reasons=("gpu_idle",), may_lock_clocks=True,
    may_read_counters=True, left_over="",
)  # fmt: skip
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


def cpu(**change: Any) -> Examination:
    return dataclasses.replace(GOOD, cpu=dataclasses.replace(GOOD_CPU, **change))


def on_gpu(**change: Any) -> Examination:
    return dataclasses.replace(GOOD, gpu=dataclasses.replace(GOOD_GPU, **change))


def cache(**change: Any) -> Examination:
    return dataclasses.replace(GOOD, kernel_cache=dataclasses.replace(GOOD_CACHE, **change))


def known(method: str, measured: float | None, *rest: Any, **options: Any) -> Examination:
    duration = KnownDuration(method, 80e-6, measured, 0.0, *rest, **options)
    return dataclasses.replace(GOOD, known_durations=(duration,))


def operations(*timings: OperationTiming) -> Examination:
    return dataclasses.replace(GOOD, operations=timings)


def relu(method: str, spread: float | None, reason: str = "") -> OperationTiming:
    median, interval = (1e-6, (1e-6, 1e-6)) if spread is not None else (None, None)
    return OperationTiming("relu", method, "as-is", median, spread, interval, reason)


BURST = OperationTiming("matmul", "kernel", "burst", 172e-6, 0.01, (171e-6, 173e-6))
SUSTAINED = OperationTiming("matmul", "kernel", "sustained", 198e-6, 0.01, (197e-6, 199e-6))
NOT_REACHED = OperationTiming("matmul", "auto", "sustained", None, None, None, "hot")


@pytest.mark.parametrize(
    ("seen", "check", "status", "message", "advice"),
    [
        (known("kernel", None, reason="CUPTI is taken"), "method kernel", "advice",
         "cannot be used: CUPTI is taken", "method='auto'"),
        (operations(relu("kernel", 0.06)), "spread", "advice", "range of relu is 6.0%",
         "convtime.compare"),
        (operations(relu("cpu", 0.6)), "spread", "failed", "range of relu is 60.0%", ""),
        (operations(relu("kernel", None, "CUPTI is taken"), relu("event", 0.07)),
         "spread", "advice", "7.0% of its median (method event)", ""),
        (operations(BURST, SUSTAINED), "regimes", "advice",
         "takes 172.0 µs in burst and 198.0 µs sustained", "regime='burst'"),
        (operations(BURST, dataclasses.replace(BURST, regime="sustained")), "regimes", "ok",
         "same time in burst and sustained", ""),
        (operations(BURST, NOT_REACHED), "regime sustained", "advice", "was not reached: hot", ""),
        (on_gpu(other_processes=2), "other processes", "failed", "2 other processes", "stop them"),
        (on_gpu(utilization=0.06), "utilization", "advice", "busy for 6%", "nvidia-smi"),
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
        (cpu(load=8.0), "CPU load", "ok", "is 8.0 on 16 CPUs", ""),
        (cpu(usable_cpus=15), "CPU threads", "advice", "16 threads on 15 usable CPUs",
         "torch.set_num_threads(15)"),
        (cache(problem="Read-only file system"), "kernel cache", "advice", "Read-only", ""),
        (cache(compiler_reason="cannot open libnvrtc"), "kernel compiler", "failed",
         "cannot open libnvrtc", "reinstall torch"),
        (GOOD, "kernel cache", "ok", "/kernels has 3 programs, 0.1 MB", ""),
        (GOOD, "kernel compiler", "ok", "is NVRTC 13.0", ""),
    ],
)  # fmt: skip
def test_each_fault_is_found_and_nothing_else(
    seen: Examination, check: str, status: str, message: str, advice: str
) -> None:
    (finding,) = [found for found in seen.findings if found.check == check]
    assert finding.status == status
    assert message in finding.message
    assert advice in finding.advice
    assert seen.passed == (status != "failed")
    others = [found for found in seen.findings if found.check != check]
    assert {found.status for found in others} <= {"ok"}


#: As in docs/reference/doctor.md.
LIMITS = {"kernel": 128e-9, "event": 250e-9, "graph": 1e-6, "sync": 5e-6, "cpu": 4e-6}


@given(
    st.sampled_from([*LIMITS]),
    st.floats(-2, 2),
    st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
@settings(max_examples=100)
def test_a_known_duration_fails_if_chance_does_not_explain_its_error(
    method: str, error: float, around: tuple[float, float] | None
) -> None:
    """Errors and ends of intervals in units of the method's limit."""
    limit = LIMITS[method]
    ends = None if around is None else (error - around[0], error + around[1])
    interval = None if ends is None else tuple(80e-6 + limit * end for end in ends)
    (finding,) = [
        found
        for found in known(method, 80e-6 + limit * error, interval).findings
        if found.check == f"method {method}"
    ]
    low, high = ends or (error, error)
    assume(all(abs(abs(each) - 1) > 1e-6 for each in (error, low, high)))  # or rounding decides
    surely = low > 1 or high < -1
    assert finding.status == ("ok" if abs(error) <= 1 else "failed" if surely else "advice")
    assert f"too {'long' if error > 0 else 'short'}" in finding.message or abs(error) < 1e-9


def test_what_is_not_known_is_not_judged() -> None:
    nothing = GpuState("GPU-1", None, None, None, None, None, None, (), True, None, "")
    unknown = CpuState((), None, None, None, 0.5, 16, 16, 16)
    seen = dataclasses.replace(GOOD, gpu=nothing, cpu=unknown, kernel_cache=None)
    assert {finding.check for finding in seen.findings} == {
        "method kernel", "method event", "spread", "throttling", "locking clocks", "CPU load",
        "CPU threads",
    }  # fmt: skip


def test_the_text_has_each_row_and_each_finding_and_the_exit_code_says_whether_one_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = dataclasses.replace(on_gpu(uncorrected_errors=3), operations=(*GOOD.operations, BURST))
    for seen, code in ((GOOD, 0), (broken, 1)):
        monkeypatch.setattr("convtime.cli.doctor.doctor", lambda _device, seen=seen: seen)
        assert cli.main(["doctor", "--device", "cpu"]) == code
    lines = [" ".join(line.split()) for line in str(broken).splitlines()]
    assert "failed ECC: the GPU's memory" in " ".join(capsys.readouterr().out.split())
    assert lines[0] == "NVIDIA H200; torch 2.11.0"
    assert "kernel 80.00 µs 80.03 µs +30 ns 0.10%" in lines
    assert "median ± IQR kernel sync burst" in lines
    assert "matmul 170.0 µs ± 1.0% 190.0 µs ± 40.0% 172.0 µs ± 1.0%" in lines
    for half in ({"median": None}, {"spread": None}):
        shown = str(operations(BURST, dataclasses.replace(SUSTAINED, **half)))
        assert "matmul 172.0 µs ± 1.0% —" in [" ".join(line.split()) for line in shown.split("\n")]
    assert "ceilings: copy 4,300 GB/s, bfloat16 matmul 790 TFLOP/s" in lines
    assert lines[-1].endswith("in 12.0 s: 1 failed, 0 with advice")
