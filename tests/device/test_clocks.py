"""Clocks are read and traced, on a fake GPU and on a real one."""

import dataclasses
import json
import sys
import threading
import time
import types
from typing import Any

import pytest
import torch

import convtime
from convtime.device import clocks, nvml
from convtime.device.clock_lock import locked_clocks, reset_clocks
from convtime.device.clock_trace import ClockReading, ClockTrace
from convtime.device.clocks import ClockMonitor
from convtime.device.resolve import resolve_gpu
from tests.helpers.figures import check_drawn, encodings, table, tables
from tests.helpers.measurements import make
from tests.helpers.waiting import wait_until


def first_reading(**options: Any) -> ClockReading:
    with ClockMonitor(**options) as monitor:
        pass
    return dataclasses.replace(monitor.readings[0], seconds=0)


def test_readings_are_what_nvml_says_in_si_units(gpu: Any) -> None:
    gpu.answers["CurrentClocksEventReasons"] = 0x4 | 0x20 | 0x8000
    with ClockMonitor("cuda", interval=0.001) as monitor:
        wait_until(lambda: len(monitor.readings) >= 3)
        lasted = time.perf_counter() - monitor.started
    assert monitor.reason == ""
    seconds = [reading.seconds for reading in monitor.readings]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] < lasted <= seconds[-1]
    reading = dataclasses.replace(monitor.readings[0], seconds=0)
    assert reading == ClockReading(
        0, 1980e6, 3201e6, 125.5, 41, ("sw_power_cap", "sw_thermal_slowdown", "0x8000")
    )
    assert gpu.bus_id == "00000001:19:02.0"  # CUDA numbers GPUs otherwise
    assert first_reading(interval=60).temperature == 41  # of a block that is over at once


@pytest.mark.parametrize("error", ["NotSupported", "FunctionNotFound", "NoPermission", "Unknown"])
def test_what_is_not_supported_is_none(gpu: Any, error: str) -> None:
    unknown = types.SimpleNamespace(nvmlReturn=3)  # NVML_ERROR_NOT_SUPPORTED
    gpu.answers["FieldValues"] = lambda _fields: [unknown]
    assert first_reading().power == 120  # the average, where there is no other
    for name in ("ClockInfo", "FieldValues", "PowerUsage", "CurrentClocksEventReasons"):
        gpu.answers[name] = getattr(gpu, f"NVMLError_{error}")()
    assert first_reading() == ClockReading(0, None, None, None, 41, None)


def test_without_nvml_the_block_runs_and_the_reason_is_told(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason() -> str:
        with convtime.trace_clocks() as trace:
            pass
        with pytest.raises(ValueError, match="cannot be drawn"):
            trace.plot()
        return trace.reason

    gpu.failures["Init"] = gpu.NVMLError_DriverNotLoaded()
    assert reason() == "NVML cannot be asked about cuda:0: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert reason() == "nvidia-ml-py is not installed; run pip install nvidia-ml-py"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert reason() == "there is no CUDA device"


def test_a_gpu_that_is_lost_or_does_not_answer_ends_the_readings_and_not_the_block(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([1980, 3201, 1965, 3201])
    lost = gpu.NVMLError_GpuIsLost("GPU is lost")
    gpu.answers["ClockInfo"] = lambda _kind: next(answers, lost)
    with ClockMonitor(interval=0.001) as monitor:
        wait_until(lambda: monitor.reason)
    assert [reading.sm_clock_hz for reading in monitor.readings] == [1980e6, 1965e6]
    assert monitor.reason == "NVML failed after 2 readings: GPU is lost"
    answered = threading.Event()
    gpu.answers["Temperature"] = lambda _sensor: answered.wait() and 41
    gpu.answers["ClockInfo"] = lambda _kind: 1980
    monkeypatch.setattr(clocks, "_LONGEST_QUERY", 0.05)
    with ClockMonitor() as monitor:
        pass
    assert not answered.is_set()
    assert monitor.reason == "NVML did not answer within 0.05 s"
    answered.set()
    assert monitor._thread is not None
    monitor._thread.join()
    monitor._session.close()


def test_the_interval_must_be_positive_and_the_device_a_gpu_of_this_process(gpu: Any) -> None:
    wrong: Any
    for wrong in (0, -1, float("nan"), float("inf"), "fast", None):
        with pytest.raises(ValueError, match="interval must be a positive number of seconds, got"):
            ClockMonitor(interval=wrong)
    for wrong in ("cpu", "gpu", "cuda:1", 7):
        uses: Any = (ClockMonitor, locked_clocks, reset_clocks, convtime.trace_clocks)
        for use in uses:
            with pytest.raises(ValueError, match="device must be"):
                use(device=wrong).__enter__()


def test_a_trace_is_whole_when_its_block_fails_and_survives_json(gpu: Any) -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    gpu.answers["CurrentClocksEventReasons"] = 0x4
    with pytest.raises(ZeroDivisionError), convtime.trace_clocks(interval=60) as trace:
        1 / ("convtime clocks" not in names())
    assert "convtime clocks" not in names()
    assert len(trace.readings) >= 2
    assert trace.device == "cuda:0"
    again = ClockTrace.from_dict(json.loads(json.dumps(trace.to_dict(), allow_nan=False)))
    assert again == trace
    assert isinstance(again.readings[0].throttle_reasons, tuple)


def test_the_picture_shows_iterations_above_what_was_read() -> None:
    rows = ((0.0, 1980e6, None), (1.0, 1500e6, ("sw_power_cap",)), (3.0, None, ("gpu_idle",)))
    readings = [ClockReading(seconds, hz, 3201e6, 500, 60, why) for seconds, hz, why in rows]
    trace = ClockTrace("cuda:0", 0.02, 100.0, tuple(readings))
    figure = trace.plot([(100.5, 2e-6), (101.5, 3e-6)])
    assert [
        each["title"] for field in ("time", "value", "reason") for each in encodings(figure, field)
    ] == ["time (µs)", "SM clock (MHz)", "power (W)", "temperature (°C)", "throttled by"]
    assert table(figure, "time") == {"seconds": [0.5, 1.5], "time": [2.0, 3.0]}
    clocks, *_ = tables(figure, "value")
    assert clocks == {"seconds": [0, 1, 3], "value": [1980, 1500, None]}
    throttled = table(figure, "reason")
    bars = zip(throttled["reason"], throttled["seconds"], throttled["end"], strict=True)
    assert ("sw_power_cap", 1, 3) in bars
    check_drawn(figure)
    # A measurement is drawn where it was sampled.
    measured = make(seconds=(1e-6, 2e-6, 3e-6, 4e-6), sampling_seconds=2.0)
    times = table(trace.plot(measured), "time")
    assert times == {"seconds": [1.0, 1.5, 2.0, 2.5], "time": [1, 2, 3, 4]}
    measured = make(seconds=(0.5, 0.25, 0.25), sampling_seconds=0.0)
    times = table(trace.plot(measured), "time")
    assert times["seconds"] == pytest.approx([2.0, 2 + 1 / 3, 2 + 2 / 3], rel=1e-5)


@pytest.mark.cuda
def test_readings_of_a_real_gpu() -> None:
    busy = torch.randn(4096, 4096, device="cuda")
    with ClockMonitor(interval=0.01) as monitor:
        for _ in range(50):
            busy @ busy
        torch.cuda.synchronize()
    assert monitor.reason == ""
    for reading in monitor.readings:
        assert reading.sm_clock_hz is not None
        assert 100e6 < reading.sm_clock_hz < 5e9
        assert 0 < (reading.temperature or 0) < 120
        assert 5 < (reading.power or 0) < 2000
        assert isinstance(reading.throttle_reasons, tuple)
    with nvml.session(resolve_gpu(None)) as real:
        assert real.uuid == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
