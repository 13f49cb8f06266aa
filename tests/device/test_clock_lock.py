"""Locks of clocks on a fake GPU: in this process, and over the ends of real processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime.device import clock_lock
from convtime.device.clock_lock import locked_clocks, reset_clocks
from tests.helpers import FAKE_NVML

LOCK_BASE = "SetGpuLockedClocks 4294967041 4294967041"
HELD = ["SetGpuLockedClocks 1500 1500"]
HELD_AND_RESET = [*HELD, "ResetGpuLockedClocks"]
RESET_ALL = ["ResetGpuLockedClocks", "ResetMemoryLockedClocks"]


@pytest.fixture
def record_path(gpu: Any, tmp_path: Path) -> Path:
    return tmp_path / "convtime" / f"clocks-{gpu.UUID}.json"


def test_clocks_are_locked_and_reset(gpu: Any) -> None:
    with locked_clocks(sm_mhz=1500, memory_mhz=2619) as locked:
        assert gpu.changes == [*HELD, "SetMemoryLockedClocks 2619 2619"]
        assert (locked.gpu, locked.sm_mhz, locked.memory_mhz) == (gpu.UUID, 1500, 2619)
    assert gpu.changes[2:] == RESET_ALL
    gpu.changes.clear()
    with pytest.raises(ZeroDivisionError), locked_clocks():
        1 / (gpu.changes != [LOCK_BASE])
    assert gpu.changes == [LOCK_BASE, "ResetGpuLockedClocks"]
    gpu.answers["SupportedMemoryClocks"] = gpu.NVMLError_NotSupported()
    with locked_clocks(sm_mhz=1234):  # clocks that are not listed are left to NVML
        assert gpu.changes[-1] == "SetGpuLockedClocks 1234 1234"


def test_a_private_file_says_what_is_locked_for_as_long_as_it_is(
    gpu: Any, record_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records: list[Any] = []
    gpu.nvmlDeviceSetGpuLockedClocks = lambda *_: records.append(
        json.loads(record_path.read_text())
    )
    with locked_clocks(sm_mhz=1500):
        assert record_path.stat().st_mode & 0o777 == 0o600
        assert record_path.parent.stat().st_mode & 0o777 == 0o700
    (record,) = records
    assert (record["type"], record["pid"]) == ("LockRecord", os.getpid())
    assert record["clocks"] == {"gpu": gpu.UUID, "sm_mhz": 1500, "memory_mhz": None}
    assert not record_path.exists()
    gpu.nvmlDeviceSetGpuLockedClocks = lambda *_: None
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # goes when the user logs out
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with locked_clocks():
        folder = tmp_path / "home" / ".local" / "state" / "convtime"
        assert len(list(folder.glob("clocks-*.json"))) == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sm_mhz": 1490}, r"sm_mhz must be a clock .* 1490 MHz; the nearest are 1485 and 1500"),
        ({"sm_mhz": 99999}, r"got 99999 MHz; the nearest are 1965 and 1980 MHz"),
        ({"memory_mhz": 3000}, r"memory_mhz must be .* the nearest are 2619 and 3201 MHz"),
        ({"sm_mhz": 1500.0}, r"sm_mhz must be a whole number, 0 or more, got 1500.0"),
        ({"memory_mhz": True}, r"memory_mhz must be a whole number, 0 or more, got True"),
    ],
)
def test_only_clocks_that_the_gpu_supports(
    gpu: Any, record_path: Path, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message), locked_clocks(**asked):
        pass
    assert gpu.changes == []
    assert not record_path.exists()


def test_without_permission_the_error_says_what_to_run(gpu: Any, record_path: Path) -> None:
    smi = f"sudo nvidia-smi -i {gpu.UUID}"
    for change in ("SetGpuLockedClocks", "ResetGpuLockedClocks"):
        gpu.failures[change] = gpu.NVMLError_NoPermission()
    both = f"run `{smi} -lgc 1500,1500 && {smi} -lmc 2619,2619` before, and `{smi} -rgc && {smi} -"
    with pytest.raises(PermissionError) as caught, locked_clocks(sm_mhz=1500, memory_mhz=2619):
        pass
    assert both in str(caught.value)
    with pytest.raises(PermissionError, match=f"run `{smi} -lgc tdp,tdp` before"), locked_clocks():
        pass
    with pytest.raises(PermissionError, match=f"run `{smi} -rgc`"):
        reset_clocks()
    assert gpu.changes == []
    assert not record_path.exists()


def test_what_fails_is_told_and_can_be_made_up_for(gpu: Any, record_path: Path) -> None:
    gpu.failures["SetMemoryLockedClocks"] = gpu.NVMLError_NotSupported("Not Supported")
    with pytest.raises(RuntimeError, match=r"locking the clocks of .* failed: Not Supported"):
        locked_clocks(memory_mhz=2619).__enter__()
    assert gpu.changes == [LOCK_BASE, "ResetGpuLockedClocks"]
    assert not record_path.exists()
    gpu.failures["ResetGpuLockedClocks"] = gpu.NVMLError_Unknown()
    lock = locked_clocks()
    lock.__enter__()
    with pytest.raises(RuntimeError, match=r"resetting the clocks of .* failed: Unknown Error"):
        lock.__exit__(None, None, None)
    assert record_path.exists()
    gpu.failures = {"ResetMemoryLockedClocks": gpu.NVMLError_NotSupported()}
    reset_clocks()  # of a GPU that cannot lock its memory
    assert gpu.changes[-2:] == [LOCK_BASE, "ResetGpuLockedClocks"]
    assert not record_path.exists()
    gpu.failures = {"ResetGpuLockedClocks": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt), locked_clocks():
        pass
    assert record_path.exists()
    gpu.failures.clear()
    clock_lock._restore_all()  # as at exit
    assert gpu.changes[-2:] == [LOCK_BASE, "ResetGpuLockedClocks"]
    assert not record_path.exists()


def test_the_folder_must_be_usable_and_ones_own(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "convtime").touch()
    with pytest.raises(RuntimeError, match=r"cannot be used \(.*\); set XDG_STATE_HOME"):
        locked_clocks().__enter__()
    (tmp_path / "convtime").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(RuntimeError, match="must belong to user 4321, but belongs to user"):
        locked_clocks().__enter__()
    assert gpu.changes == []


def test_a_signal_ends_the_block_by_a_handler_that_raises_and_handlers_are_ours_only_within(
    gpu: Any,
) -> None:
    with locked_clocks():
        assert signal.getsignal(signal.SIGTERM) is clock_lock._restore_and_end
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    handlers: Any = (lambda *_: sys.exit(7), lambda *_: None)

    def end_after_a_signal() -> None:
        with locked_clocks():
            os.kill(os.getpid(), signal.SIGTERM)
            gpu.changes.append("still locked")
            sys.exit(7)

    for handler, changes in zip(handlers, (2, 3), strict=True):
        gpu.changes.clear()
        before = signal.signal(signal.SIGTERM, handler)
        try:
            with pytest.raises(SystemExit, match="7"):
                end_after_a_signal()
        finally:
            signal.signal(signal.SIGTERM, before)
        assert len(gpu.changes) == changes
        assert gpu.changes[-1] == "ResetGpuLockedClocks"


def test_outside_of_the_main_thread_it_is_said_that_signals_are_not_handled(gpu: Any) -> None:
    def lock() -> None:
        with pytest.warns(match="outside of the main thread stay locked") as told, locked_clocks():
            assert told[0].filename == __file__

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lock).result()
    assert gpu.changes == [LOCK_BASE, "ResetGpuLockedClocks"]


# What other processes leave: records like this process's own, with other fields.

Leave = Callable[..., int]


@pytest.fixture
def leave(gpu: Any, record_path: Path) -> Leave:
    """Write the record of a process; by default one that was killed, as there is no such id."""
    with locked_clocks(sm_mhz=1500):
        record = json.loads(record_path.read_text())
    gpu.changes.clear()

    def write(**fields: Any) -> int:
        made = {**record, "pid": 2**22 + 1, **fields}
        record_path.write_text(json.dumps(made))
        return int(made["pid"])

    return write


def test_what_a_killed_process_left_is_said_once_and_reset_first(
    leave: Leave, gpu: Any, record_path: Path
) -> None:
    told = f"process {leave()} ended without resetting the clocks of {gpu.UUID}, which it locked"
    with pytest.warns(RuntimeWarning, match=told) as caught, convtime.trace_clocks():
        pass
    assert f"or run `sudo nvidia-smi -i {gpu.UUID} -rgc`" in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with convtime.trace_clocks():
            pass
    assert gpu.changes == []
    with pytest.warns(RuntimeWarning, match=told) as caught, locked_clocks():
        assert json.loads(record_path.read_text())["pid"] == os.getpid()
    assert caught[0].filename == __file__
    assert gpu.changes == [*RESET_ALL, LOCK_BASE, "ResetGpuLockedClocks"]
    assert not record_path.exists()
    leave()
    assert clock_lock.left_over().startswith("process ")
    reset_clocks()
    assert gpu.changes[-2:] == RESET_ALL
    assert clock_lock.left_over() == ""


def test_which_records_are_of_processes_that_still_run(
    leave: Leave, gpu: Any, record_path: Path
) -> None:
    leave(boot="another")
    assert clock_lock.left_over() == ""  # a reboot resets
    parent = os.getppid()
    leave(pid=parent, process_start=1)  # its id was another process's
    assert clock_lock.left_over().startswith(f"process {parent} ended")
    leave(pid=parent, process_start=clock_lock._process_start(parent))
    assert clock_lock.left_over() == ""
    for use in (locked_clocks().__enter__, reset_clocks):
        with pytest.raises(RuntimeError, match=rf"already locked \(.*\) by process {parent}"):
            use()
    assert gpu.changes == []
    record_path.unlink()
    with locked_clocks():
        for again in (locked_clocks(sm_mhz=1500).__enter__, reset_clocks):
            with pytest.raises(RuntimeError, match=r"already locked \(at the base clock\) by this"):
                again()
        assert gpu.changes == [LOCK_BASE]


@pytest.mark.parametrize("content", ['{"schema": 99}', "[]", "half a fi"])
def test_a_file_that_cannot_be_read_is_not_guessed_at(
    gpu: Any, record_path: Path, content: str
) -> None:
    record_path.parent.mkdir()
    record_path.write_text(content)
    with pytest.raises(RuntimeError, match=f"{record_path}, which says .* not of this version"):
        locked_clocks().__enter__()
    assert gpu.changes == []
    with pytest.warns(RuntimeWarning, match="not of this version"), convtime.trace_clocks():
        pass
    reset_clocks()
    assert not record_path.exists()


# Ends of real processes.


@pytest.fixture
def child(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs code in a process with a fake GPU until it prints a line, and returns the process."""
    log = tmp_path / "changes"
    log.touch()
    monkeypatch.setenv("FAKE_NVML_CHANGES", str(log))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE_NVML), *sys.path]))
    started = []
    # Under nohup SIGHUP is ignored, and SIGINT in a shell's background; children inherit that.
    begin = (
        "import os, signal, sys, threading, time; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import one_gpu; one_gpu.pretend(); import convtime\n"
    )

    def start(code: str) -> Any:
        command = [sys.executable, "-c", begin + textwrap.dedent(code)]
        pipe = subprocess.PIPE
        process: Any = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        assert process.stdout.readline() == "locked\n"
        process.changes = lambda: log.read_text().splitlines()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


HOLD = """
    with convtime.locked_clocks(sm_mhz=1500):
        print("locked", flush=True)
        time.sleep(60)
"""
IGNORE = """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with convtime.locked_clocks(sm_mhz=1500):
        print("locked", flush=True)
        os.kill(os.getpid(), signal.SIGHUP)
        print("goes on", flush=True)
"""
IN_A_THREAD = """
    is_held = threading.Event()
    def hold():
        with convtime.locked_clocks(sm_mhz=1500):
            print("locked", flush=True)
            is_held.set()
            time.sleep(60)
    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()
    sys.exit(3)
"""
# A forked child does not reset what its parent holds.
FORK = """
    with convtime.locked_clocks(sm_mhz=1500):
        print("locked", flush=True)
        for end in (lambda: sys.exit(0), lambda: os.kill(os.getpid(), signal.SIGTERM)):
            pid = os.fork()
            if pid == 0:
                end()
            os.waitpid(pid, 0)
        print(len(open(os.environ["FAKE_NVML_CHANGES"]).readlines()), "change", flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "sent", "returncode", "printed"),
    [
        (HOLD, signal.SIGTERM, -signal.SIGTERM, ""),
        (HOLD, signal.SIGINT, -signal.SIGINT, ""),  # as Python, too, ends after an interrupt
        (HOLD, signal.SIGHUP, -signal.SIGHUP, ""),
        (IGNORE, None, 0, "goes on\n"),
        (IN_A_THREAD, None, 3, ""),
        (FORK, None, 0, "1 change\n"),
    ],
)
def test_the_end_of_a_process_resets(
    child: Any, record_path: Path, code: str, sent: int | None, returncode: int, printed: str
) -> None:
    process = child(code)
    if sent is not None:
        assert record_path.exists()
        process.send_signal(sent)
    assert process.stdout.read() == printed
    assert process.wait(30) == returncode
    assert process.changes() == HELD_AND_RESET
    assert not record_path.exists()


@pytest.mark.thorough
def test_a_process_is_known_to_hold_a_lock_until_it_is_killed(child: Any, gpu: Any) -> None:
    process = child(HOLD)
    with pytest.raises(RuntimeError, match=rf"already locked \(.*\) by process {process.pid}"):
        locked_clocks().__enter__()
    assert clock_lock.left_over() == ""
    process.kill()
    process.wait(30)
    assert process.changes() == HELD
    assert clock_lock.left_over().startswith(f"process {process.pid} ended")
    assert gpu.changes == []


@pytest.mark.cuda
def test_permission_is_denied_with_the_commands_of_a_real_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing here may change the clocks of the GPU."""
    import pynvml

    def deny(*_: Any) -> None:
        raise pynvml.NVMLError_NoPermission

    for name in ("SetGpu", "SetMemory", "ResetGpu", "ResetMemory"):
        monkeypatch.setattr(pynvml, f"nvmlDevice{name}LockedClocks", deny)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    uuid = torch.cuda.get_device_properties(0).uuid
    with pytest.raises(PermissionError, match=f"nvidia-smi -i GPU-{uuid} -lgc tdp,tdp` before"):
        locked_clocks(device=0).__enter__()
    assert list((tmp_path / "convtime").glob("clocks-*")) == []
