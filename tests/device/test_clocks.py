"""Clocks are read, traced and locked: on a fake GPU, with real signals and real processes."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import warnings

import pytest
import torch

import convtime
from convtime.device import clock_lock, clocks
from convtime.device.clock_lock import locked_clocks, reset_clocks
from convtime.device.clock_reading import ClockReading
from convtime.device.clock_trace import ClockTrace
from convtime.device.clocks import ClockMonitor
from convtime.device.resolve import resolve_gpu
from tests.helpers import FAKE_NVML
from tests.helpers.figures import check_drawn, encodings, table, tables
from tests.helpers.waiting import wait_until

LOCK_BASE = "SetGpuLockedClocks 4294967041 4294967041"


@pytest.fixture
def record_path(gpu, tmp_path):
    return tmp_path / "convtime" / f"clocks-{gpu.UUID}.json"


# Readings.


def test_readings_are_what_nvml_says_in_si_units(gpu):
    gpu.answers["CurrentClocksEventReasons"] = 0x4 | 0x20 | 0x8000
    with ClockMonitor(0, interval=0.01) as monitor:
        wait_until(lambda: time.perf_counter() > monitor.started + 0.1 and monitor.readings)
        lasted = time.perf_counter() - monitor.started
    assert monitor.reason == ""
    seconds = [reading.seconds for reading in monitor.readings]
    assert 2 <= len(seconds) <= 3 + 100 * seconds[-1]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] < lasted <= seconds[-1]
    reading = dataclasses.replace(monitor.readings[0], seconds=0)
    assert reading == ClockReading(
        0, 1980e6, 3201e6, 125.5, 41, ("sw_power_cap", "sw_thermal_slowdown", "0x8000")
    )


def test_a_block_that_is_over_at_once_has_a_reading(gpu):
    with ClockMonitor(interval=60) as monitor:
        pass
    assert monitor.readings


def test_the_gpu_is_known_by_its_bus_since_cuda_renumbers(gpu):
    with ClockMonitor("cuda"):
        pass
    assert gpu.bus_id == "00000001:19:02.0"


@pytest.mark.parametrize("error", ["NotSupported", "FunctionNotFound", "NoPermission", "Unknown"])
def test_what_is_not_supported_is_none(gpu, error):
    for name in ("ClockInfo", "FieldValues", "PowerUsage", "CurrentClocksEventReasons"):
        gpu.answers[name] = getattr(gpu, f"NVMLError_{error}")()
    with ClockMonitor() as monitor:
        pass
    reading = dataclasses.replace(monitor.readings[0], seconds=0)
    assert reading == ClockReading(0, None, None, None, 41, None)


def test_average_power_where_there_is_no_other(gpu):
    unknown = types.SimpleNamespace(nvmlReturn=3)  # NVML_ERROR_NOT_SUPPORTED
    gpu.answers["FieldValues"] = lambda _fields: [unknown]
    with ClockMonitor() as monitor:
        pass
    assert monitor.readings[0].power == 120


def test_without_nvml_the_block_runs_and_the_reason_is_told(gpu, monkeypatch):
    gpu.failures["Init"] = gpu.NVMLError_DriverNotLoaded()
    with ClockMonitor() as monitor:
        ran = True
    assert ran
    assert monitor.readings == ()
    assert monitor.reason == "NVML cannot be asked about cuda:0: Driver Not Loaded"

    monkeypatch.setitem(sys.modules, "pynvml", None)
    with ClockMonitor() as monitor:
        pass
    assert monitor.reason == "nvidia-ml-py is not installed; run pip install nvidia-ml-py"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with ClockMonitor() as monitor:
        pass
    assert monitor.reason == "there is no CUDA device"


def test_a_gpu_that_is_lost_ends_the_readings_and_not_the_block(gpu):
    answers = iter([1980, 3201, 1965, 3201])
    lost = gpu.NVMLError_GpuIsLost("GPU is lost")
    gpu.answers["ClockInfo"] = lambda _kind: next(answers, lost)
    with ClockMonitor(interval=0.001) as monitor:
        wait_until(lambda: monitor.reason)
    assert [reading.sm_clock_hz for reading in monitor.readings] == [1980e6, 1965e6]
    assert monitor.reason == "NVML failed after 2 readings: GPU is lost"


def test_the_thread_ends_with_the_block_also_when_that_fails(gpu):
    def names():
        return [thread.name for thread in threading.enumerate()]

    with pytest.raises(ZeroDivisionError), ClockMonitor(interval=60):
        1 / ("convtime clocks" not in names())
    assert "convtime clocks" not in names()


def test_a_driver_that_does_not_answer_is_not_waited_for(gpu, monkeypatch):
    answered = threading.Event()
    gpu.answers["Temperature"] = lambda _sensor: answered.wait() and 41
    monkeypatch.setattr(clocks, "_LONGEST_QUERY", 0.05)
    start = time.perf_counter()
    with ClockMonitor() as monitor:
        pass
    assert time.perf_counter() - start < 5
    assert monitor.reason == "NVML did not answer within 0.05 s"
    answered.set()
    monitor._thread.join()
    monitor._session.close()


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), "fast", None])
def test_interval_must_be_positive(gpu, interval):
    with pytest.raises(ValueError, match="interval must be a positive number of seconds, got"):
        ClockMonitor(interval=interval)


@pytest.mark.parametrize("device", ["cpu", "gpu", "cuda:1", 7])
def test_device_must_be_a_gpu_of_this_process(gpu, device):
    for use in (ClockMonitor, locked_clocks, reset_clocks, convtime.trace_clocks):
        with pytest.raises(ValueError, match="device must be"):
            use(device=device).__enter__()


# Traces.


def test_a_trace_survives_json(gpu):
    gpu.answers["CurrentClocksEventReasons"] = 0x4
    with convtime.trace_clocks(interval=0.01) as trace:
        assert trace.readings == ()
        time.sleep(0.03)
    assert len(trace.readings) >= 2
    assert trace.device == "cuda:0"
    again = ClockTrace.from_dict(json.loads(json.dumps(trace.to_dict(), allow_nan=False)))
    assert again == trace
    assert isinstance(again.readings[0].throttle_reasons, tuple)


def test_a_trace_is_whole_when_its_block_fails(gpu):
    with pytest.raises(ZeroDivisionError), convtime.trace_clocks() as trace:
        raise ZeroDivisionError
    assert trace.readings


def test_only_this_major_version_is_read():
    data = ClockTrace("cuda:0", 0.02, 0.0).to_dict()
    with pytest.raises(ValueError, match="a ClockTrace of schema 7 cannot be read"):
        ClockTrace.from_dict({**data, "schema": 7})
    with pytest.raises(ValueError, match="missing required field `started`"):
        ClockTrace.from_dict({name: value for name, value in data.items() if name != "started"})
    reading = {"seconds": "soon"}
    with pytest.raises(ValueError, match=r"at `\$\.readings\[0\]"):
        ClockTrace.from_dict({**data, "readings": [reading]})


def a_trace():
    rows = [(0.0, 1980e6, None), (1.0, 1500e6, ("sw_power_cap",)), (3.0, None, ("gpu_idle",))]
    readings = tuple(
        ClockReading(seconds, clock, 3201e6, 500, 60, why) for seconds, clock, why in rows
    )
    return ClockTrace("cuda:0", 0.02, 100.0, readings)


def test_the_picture_shows_iterations_above_what_was_read():
    figure = a_trace().plot([(100.5, 2e-6), (101.5, 3e-6)])
    titles = [
        each["title"] for field in ("time", "value", "reason") for each in encodings(figure, field)
    ]
    assert titles == [
        "time (µs)", "SM clock (MHz)", "power (W)", "temperature (°C)", "throttled by",
    ]  # fmt: skip
    assert table(figure, "time") == {"seconds": [0.5, 1.5], "time": [2.0, 3.0]}
    clocks, *_ = tables(figure, "value")
    assert clocks == {"seconds": [0, 1, 3], "value": [1980, 1500, None]}
    throttled = table(figure, "reason")
    bars = zip(throttled["reason"], throttled["seconds"], throttled["end"], strict=True)
    assert ("sw_power_cap", 1, 3) in bars
    check_drawn(figure)


def test_a_measurement_is_drawn_where_it_was_sampled():
    measured = convtime.time_op(torch.zeros(8).add_, 1, device="cpu", budget=0.05, warmup=1)
    measured = dataclasses.replace(measured, seconds=(1e-6, 2e-6, 3e-6, 4e-6), sampling_seconds=2)
    times = table(a_trace().plot(measured), "time")
    assert times == {"seconds": [1.0, 1.5, 2.0, 2.5], "time": [1, 2, 3, 4]}
    measured = dataclasses.replace(measured, seconds=(0.5, 0.25, 0.25), sampling_seconds=0)
    times = table(a_trace().plot(measured), "time")
    assert times["seconds"] == pytest.approx([2.0, 2 + 1 / 3, 2 + 2 / 3], rel=1e-5)


def test_an_empty_trace_says_why_it_cannot_be_drawn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with convtime.trace_clocks() as trace, pytest.raises(ValueError, match="cannot be drawn"):
        trace.plot()
    with pytest.raises(ValueError, match="cannot be drawn: there is no CUDA device"):
        trace.plot()


# Locks, in this process.


def test_clocks_are_locked_and_reset(gpu):
    with locked_clocks(sm_mhz=1500, memory_mhz=2619) as locked:
        assert gpu.changes == ["SetGpuLockedClocks 1500 1500", "SetMemoryLockedClocks 2619 2619"]
        assert (locked.gpu, locked.sm_mhz, locked.memory_mhz) == (gpu.UUID, 1500, 2619)
    assert gpu.changes[2:] == ["ResetGpuLockedClocks", "ResetMemoryLockedClocks"]


def test_the_base_clock_is_the_default(gpu):
    with locked_clocks():
        assert gpu.changes == [LOCK_BASE]
    assert gpu.changes == [LOCK_BASE, "ResetGpuLockedClocks"]


def test_an_exception_resets_and_passes_through(gpu):
    with pytest.raises(ZeroDivisionError), locked_clocks():
        raise ZeroDivisionError
    assert gpu.changes[-1] == "ResetGpuLockedClocks"


def test_a_private_file_says_what_is_locked_for_as_long_as_it_is(gpu, record_path):
    def check(*_):
        record = json.loads(record_path.read_text())
        assert record["type"] == "LockRecord"
        assert record["pid"] == os.getpid()
        assert record["clocks"] == {"gpu": gpu.UUID, "sm_mhz": 1500, "memory_mhz": None}
        checked.append(True)

    checked: list[bool] = []
    gpu.nvmlDeviceSetGpuLockedClocks = check
    with locked_clocks(sm_mhz=1500):
        assert record_path.stat().st_mode & 0o777 == 0o600
        assert record_path.parent.stat().st_mode & 0o777 == 0o700
    assert checked
    assert not record_path.exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"sm_mhz": 1490},
            r"sm_mhz must be a clock that .* got 1490 MHz; the nearest are 1485 and 1500 MHz",
        ),
        ({"sm_mhz": 99999}, r"got 99999 MHz; the nearest are 1965 and 1980 MHz"),
        (
            {"memory_mhz": 3000},
            r"memory_mhz must be .* got 3000 MHz; the nearest are 2619 and 3201 MHz",
        ),
        ({"sm_mhz": 1500.0}, r"sm_mhz must be a whole number, got 1500.0"),
        ({"memory_mhz": True}, r"memory_mhz must be a whole number, got True"),
    ],
)
def test_only_clocks_that_the_gpu_supports(gpu, record_path, asked, message):
    with pytest.raises(ValueError, match=message), locked_clocks(**asked):
        pass
    assert gpu.changes == []
    assert not record_path.exists()


def test_without_permission_the_error_says_what_to_run(gpu, record_path):
    gpu.failures["SetGpuLockedClocks"] = gpu.NVMLError_NoPermission()
    with pytest.raises(PermissionError) as caught, locked_clocks(sm_mhz=1500, memory_mhz=2619):
        pass
    smi = f"sudo nvidia-smi -i {gpu.UUID}"
    assert str(caught.value) == (
        f"locking the clocks of {gpu.UUID} needs root's rights, which this process does not have; "
        f"run `{smi} -lgc 1500,1500 && {smi} -lmc 2619,2619` before, and "
        f"`{smi} -rgc && {smi} -rmc` after"
    )
    assert gpu.changes == []
    assert not record_path.exists()
    with pytest.raises(PermissionError, match=f"run `{smi} -lgc tdp,tdp` before"), locked_clocks():
        pass


def test_what_is_half_locked_is_reset(gpu, record_path):
    gpu.failures["SetMemoryLockedClocks"] = gpu.NVMLError_NotSupported("Not Supported")
    with pytest.raises(RuntimeError, match=r"locking the clocks of .* failed: Not Supported"):
        locked_clocks(memory_mhz=2619).__enter__()
    assert gpu.changes == [LOCK_BASE, "ResetGpuLockedClocks"]
    assert not record_path.exists()


def test_a_reset_that_fails_is_told_and_can_be_made_up_for(gpu, record_path):
    gpu.failures["ResetGpuLockedClocks"] = gpu.NVMLError_Unknown()
    lock = locked_clocks()
    lock.__enter__()
    with pytest.raises(RuntimeError, match=r"resetting the clocks of .* failed: Unknown Error"):
        lock.__exit__(None, None, None)
    assert record_path.exists()
    gpu.failures.clear()
    reset_clocks()
    assert gpu.changes[-2:] == ["ResetGpuLockedClocks", "ResetMemoryLockedClocks"]
    assert not record_path.exists()


def test_an_interrupted_reset_is_made_up_for_at_exit(gpu, record_path):
    gpu.failures["ResetGpuLockedClocks"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), locked_clocks():
        pass
    assert record_path.exists()
    gpu.failures.clear()
    clock_lock._restore_all()
    assert gpu.changes == [LOCK_BASE, "ResetGpuLockedClocks"]
    assert not record_path.exists()


def test_locks_are_not_nested(gpu, record_path):
    with locked_clocks():
        for again in (locked_clocks(sm_mhz=1500).__enter__, reset_clocks):
            with pytest.raises(RuntimeError, match=r"already locked \(at the base clock\) by this"):
                again()
        assert gpu.changes == [LOCK_BASE]
        assert record_path.exists()


def test_reset_without_permission_says_what_to_run(gpu):
    gpu.failures["ResetGpuLockedClocks"] = gpu.NVMLError_NoPermission()
    with pytest.raises(PermissionError, match=f"run `sudo nvidia-smi -i {gpu.UUID} -rgc`"):
        reset_clocks()


def test_reset_of_a_gpu_that_cannot_lock_its_memory(gpu):
    gpu.failures["ResetMemoryLockedClocks"] = gpu.NVMLError_NotSupported()
    reset_clocks()
    assert gpu.changes == ["ResetGpuLockedClocks"]


def test_the_folder_must_be_ones_own(gpu, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(RuntimeError, match="must belong to user 4321, but belongs to user"):
        locked_clocks().__enter__()
    assert gpu.changes == []


def test_a_folder_that_cannot_be_made_is_told(gpu, monkeypatch, tmp_path):
    (tmp_path / "convtime").touch()
    with pytest.raises(RuntimeError, match=r"cannot be used \(.*\); set XDG_STATE_HOME"):
        locked_clocks().__enter__()
    assert gpu.changes == []


def test_clocks_that_are_not_listed_are_left_to_nvml(gpu):
    gpu.answers["SupportedMemoryClocks"] = gpu.NVMLError_NotSupported()
    with pytest.raises(ValueError, match="sm_mhz must be a whole number, got 'fast'"):
        locked_clocks(sm_mhz="fast").__enter__()  # type: ignore[arg-type]
    with locked_clocks(sm_mhz=1234):
        assert gpu.changes == ["SetGpuLockedClocks 1234 1234"]


def test_locks_are_written_down_in_the_users_state_folder(gpu, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # goes when the user logs out
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with locked_clocks():
        folder = tmp_path / "home" / ".local" / "state" / "convtime"
        assert len(list(folder.glob("clocks-*.json"))) == 1


def test_signal_handlers_are_ours_only_within(gpu):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with locked_clocks():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_outside_of_the_main_thread_it_is_said_that_signals_are_not_handled(gpu):
    def lock():
        with warnings.catch_warnings(record=True) as caught, locked_clocks():
            told.extend(caught)

    told: list[warnings.WarningMessage] = []
    thread = threading.Thread(target=lock)
    thread.start()
    thread.join()
    (warning,) = told
    assert "outside of the main thread stay locked if a signal ends" in str(warning.message)
    assert warning.filename == __file__
    assert gpu.changes == [LOCK_BASE, "ResetGpuLockedClocks"]


# Locks and the ends of processes.


@pytest.fixture
def child(gpu, tmp_path, monkeypatch):
    """Runs code in a process with a fake GPU until it prints a line, and returns the process."""
    log = tmp_path / "changes"
    log.touch()
    monkeypatch.setenv("FAKE_NVML_CHANGES", str(log))
    path = os.pathsep.join([str(FAKE_NVML), *sys.path])
    started = []
    # Under nohup SIGHUP is ignored, and SIGINT in a shell's background; children inherit that.
    begin = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import one_gpu; one_gpu.pretend()\n"
    )

    def start(code):
        process = subprocess.Popen(
            [sys.executable, "-c", begin + textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "locked\n"
        process.changes = lambda: log.read_text().splitlines()  # type: ignore[attr-defined]
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


HOLD = """
    import time, convtime
    with convtime.locked_clocks(sm_mhz=1500):
        print("locked", flush=True)
        time.sleep(60)
"""
HELD = ["SetGpuLockedClocks 1500 1500"]
HELD_AND_RESET = [*HELD, "ResetGpuLockedClocks"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reset_and_end_the_process_as_ever(child, record_path, number):
    process = child(HOLD)
    assert record_path.exists()
    process.send_signal(number)
    process.wait(30)
    assert process.returncode == -number  # Python, too, ends an interrupted process by SIGINT
    assert process.changes() == HELD_AND_RESET
    assert not record_path.exists()


def test_a_handler_that_raises_leaves_the_block(child, record_path):
    process = child("""
        import signal, sys, time, convtime
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        with convtime.locked_clocks(sm_mhz=1500):
            print("locked", flush=True)
            time.sleep(60)
    """)
    process.terminate()
    assert process.wait(30) == 7
    assert process.changes() == HELD_AND_RESET
    assert not record_path.exists()


def test_a_handler_that_returns_does_not_end_the_lock(child):
    process = child("""
        import os, signal, convtime, pynvml
        signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
        with convtime.locked_clocks(sm_mhz=1500):
            print("locked", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            print(pynvml.changes, flush=True)
    """)
    assert process.stdout.read() == f"handled\n{HELD}\n"
    assert process.wait(30) == 0
    assert process.changes() == HELD_AND_RESET


def test_an_ignored_signal_stays_ignored(child):
    process = child("""
        import os, signal, convtime
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with convtime.locked_clocks(sm_mhz=1500):
            print("locked", flush=True)
            os.kill(os.getpid(), signal.SIGHUP)
            print("goes on", flush=True)
    """)
    assert process.stdout.read() == "goes on\n"
    assert process.wait(30) == 0


def test_the_end_of_the_interpreter_resets(child, record_path):
    process = child("""
        import sys, threading, time, convtime
        is_held = threading.Event()
        def hold():
            with convtime.locked_clocks(sm_mhz=1500):
                print("locked", flush=True)
                is_held.set()
                time.sleep(60)
        threading.Thread(target=hold, daemon=True).start()
        is_held.wait()
        sys.exit(3)
    """)
    assert process.wait(30) == 3
    assert process.changes() == HELD_AND_RESET
    assert not record_path.exists()


def test_a_forked_child_does_not_reset_what_its_parent_holds(child):
    process = child("""
        import os, signal, sys, convtime, pynvml
        with convtime.locked_clocks(sm_mhz=1500):
            print("locked", flush=True)
            for end in (lambda: sys.exit(0), lambda: os.kill(os.getpid(), signal.SIGTERM)):
                pid = os.fork()
                if pid == 0:
                    end()
                os.waitpid(pid, 0)
            print(open(os.environ["FAKE_NVML_CHANGES"]).read().split("\\n"), flush=True)
    """)
    assert process.stdout.read() == f"{[*HELD, '']}\n"
    assert process.wait(30) == 0
    assert process.changes() == HELD_AND_RESET


def test_another_process_waits_its_turn(child, gpu, record_path):
    process = child(HOLD)
    for use in (locked_clocks().__enter__, reset_clocks):
        with pytest.raises(RuntimeError, match=rf"already locked \(.*\) by process {process.pid}"):
            use()
    assert gpu.changes == []
    assert clock_lock.left_over() == ""
    assert record_path.exists()


# The record that a killed process left, made once: each process takes seconds to import torch.
_LEFT: list[tuple[int, str]] = []


@pytest.fixture
def killed(child, record_path):
    """The pid of a process that was killed while it held a lock."""
    if not _LEFT:
        process = child(HOLD)
        process.kill()
        process.wait(30)
        assert process.changes() == HELD
        _LEFT.append((process.pid, record_path.read_text()))
    ((pid, record),) = _LEFT
    record_path.parent.mkdir(exist_ok=True)
    record_path.write_text(record)
    return pid


def test_the_next_trace_says_once_what_a_killed_process_left(killed, gpu, record_path):
    told = f"process {killed} ended without resetting the clocks of {gpu.UUID}, which it locked"
    with pytest.warns(RuntimeWarning, match=told) as caught, convtime.trace_clocks():
        pass
    assert f"or run `sudo nvidia-smi -i {gpu.UUID} -rgc`" in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with convtime.trace_clocks():
            pass
    assert gpu.changes == []
    assert record_path.exists()


def test_the_next_lock_says_so_and_resets_first(killed, gpu, record_path):
    told = pytest.warns(RuntimeWarning, match=f"process {killed} ended without")
    with told as caught, locked_clocks():
        assert json.loads(record_path.read_text())["pid"] == os.getpid()
    assert caught[0].filename == __file__
    assert gpu.changes == [
        "ResetGpuLockedClocks", "ResetMemoryLockedClocks", LOCK_BASE, "ResetGpuLockedClocks",
    ]  # fmt: skip
    assert not record_path.exists()


def test_reset_clocks_removes_what_was_left(killed, gpu, record_path):
    assert clock_lock.left_over().startswith(f"process {killed} ended")
    reset_clocks()
    assert gpu.changes == ["ResetGpuLockedClocks", "ResetMemoryLockedClocks"]
    assert not record_path.exists()
    assert clock_lock.left_over() == ""


def test_nothing_is_left_over_after_a_reboot(killed, record_path):
    record = json.loads(record_path.read_text())
    record_path.write_text(json.dumps({**record, "boot": "another"}))
    assert clock_lock.left_over() == ""


def test_a_pid_that_is_used_again_is_not_mistaken_for_the_process(killed, record_path):
    record = json.loads(record_path.read_text())
    record_path.write_text(json.dumps({**record, "pid": os.getppid()}))
    assert clock_lock.left_over().startswith(f"process {os.getppid()} ended")


@pytest.mark.parametrize("content", ['{"schema": 99}', '{"schema": 1}', "[]", "half a fi"])
def test_a_file_that_cannot_be_read_is_not_guessed_at(gpu, record_path, content):
    record_path.parent.mkdir()
    record_path.write_text(content)
    with pytest.raises(RuntimeError, match=f"{record_path}, which says .* not of this version"):
        locked_clocks().__enter__()
    assert gpu.changes == []
    with pytest.warns(RuntimeWarning, match="not of this version"), convtime.trace_clocks():
        pass
    reset_clocks()
    assert not record_path.exists()


# On a GPU. Nothing here may change its clocks.


@pytest.mark.cuda
def test_readings_of_a_real_gpu():
    busy = torch.randn(4096, 4096, device="cuda")
    with ClockMonitor(interval=0.01) as monitor:
        for _ in range(50):
            busy @ busy
        torch.cuda.synchronize()
    assert monitor.reason == ""
    for reading in monitor.readings:
        assert 100e6 < reading.sm_clock_hz < 5e9
        assert 0 < reading.temperature < 120
        assert 5 < reading.power < 2000
        assert isinstance(reading.throttle_reasons, tuple)


@pytest.mark.cuda
def test_a_real_gpu_is_the_one_that_torch_means():
    from convtime.device import nvml

    device = resolve_gpu(None)
    with nvml.session(device) as gpu:
        assert gpu.uuid == f"GPU-{torch.cuda.get_device_properties(device).uuid}"


@pytest.mark.cuda
def test_permission_is_denied_with_the_commands_of_a_real_gpu(monkeypatch, tmp_path):
    import pynvml

    def deny(*_):
        raise pynvml.NVMLError_NoPermission

    for name in ("SetGpu", "SetMemory", "ResetGpu", "ResetMemory"):
        monkeypatch.setattr(pynvml, f"nvmlDevice{name}LockedClocks", deny)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    uuid = torch.cuda.get_device_properties(0).uuid
    with pytest.raises(PermissionError, match=f"nvidia-smi -i GPU-{uuid} -lgc tdp,tdp` before"):
        locked_clocks(device=0).__enter__()
    assert list((tmp_path / "convtime").glob("clocks-*")) == []
