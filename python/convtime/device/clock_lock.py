"""Lock a GPU's clocks for a while, and make sure that they do not stay locked.

NVML cannot report whether clocks are locked, and a lock outlives the process that made it. A file
therefore records each lock: it is written before the lock is set and removed after the reset. If
its process has died, the file shows which lock was left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from convtime.core import codec
from convtime.core.checks import check_whole
from convtime.core.files import exclusive_state, replace_file, state_folder
from convtime.device import nvml
from convtime.device.resolve import resolve_gpu

#: By default these end a process silently, except SIGINT: Python raises KeyboardInterrupt.
_DEADLY_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class LockedClocks:
    """The clocks that :func:`locked_clocks` has locked.

    Attributes:
        gpu: UUID of the GPU.
        sm_mhz: SM clock in MHz; None for the base clock.
        memory_mhz: memory clock in MHz; None if it is not locked.
    """

    gpu: str
    sm_mhz: int | None
    memory_mhz: int | None

    @property
    def lock_command(self) -> str:
        """The shell command that sets the same lock."""
        sm_mhz = "tdp,tdp" if self.sm_mhz is None else f"{self.sm_mhz},{self.sm_mhz}"
        memory_mhz = self.memory_mhz and f"-lmc {self.memory_mhz},{self.memory_mhz}"
        return self._as_root(f"-lgc {sm_mhz}", memory_mhz)

    @property
    def reset_command(self) -> str:
        """The shell command that removes the lock."""
        return self._as_root("-rgc", self.memory_mhz and "-rmc")

    def _as_root(self, *actions: str | int | None) -> str:
        # nvidia-smi accepts one action per call.
        return " && ".join(
            f"sudo nvidia-smi -i {self.gpu} {action}" for action in actions if action
        )

    def __str__(self) -> str:
        sm = "at the base clock" if self.sm_mhz is None else f"at {self.sm_mhz} MHz"
        return sm if self.memory_mhz is None else f"{sm}, memory at {self.memory_mhz} MHz"


@dataclasses.dataclass(frozen=True)
class LockRecord(codec.Stored):
    """The content of a lock's file: which process has locked which clocks.

    Attributes:
        clocks: the locked clocks.
        pid: id of the process.
        process_start: start time of the process, in kernel ticks, because pids are reused.
        boot: the kernel's boot id; a reboot removes every lock.
        since: UTC time in ISO format.
    """

    clocks: LockedClocks
    pid: int
    process_start: int | None
    boot: str
    since: str

    def is_in_place(self) -> bool:
        """Return whether the locking process is still there to reset the clocks."""
        if self.pid == os.getpid():
            return any(lock.clocks.gpu == self.clocks.gpu for lock in _held)
        return self.process_start == _process_start(self.pid)

    def __str__(self) -> str:
        return (
            f"process {self.pid} ended without resetting the clocks of {self.clocks.gpu}, which it "
            f"locked ({self.clocks}) at {self.since}; call convtime.reset_clocks(), or run "
            f"`{self.clocks.reset_command}`"
        )


@contextlib.contextmanager
def locked_clocks(
    sm_mhz: int | None = None,
    memory_mhz: int | None = None,
    device: torch.device | str | int | None = None,
) -> Iterator[LockedClocks]:
    """Lock a GPU's clocks at fixed rates for a block of code.

    The clocks are reset when the block ends, also by an exception, and when the process exits or is
    ended by SIGTERM, SIGINT or SIGHUP. Your own signal handlers stay installed: if one raises, the
    block ends; if it returns, the block continues at the locked clocks. A process that is killed
    (SIGKILL) resets nothing; the next call of this function, of ``trace_clocks`` or of
    ``convtime doctor`` reports it.

    The reset removes every lock, including a lock that nvidia-smi had set before: the driver does
    not report which clocks were locked.

    Args:
        sm_mhz: SM clock in MHz, one that the GPU supports. Default: the base clock, which the GPU
            is rated to hold within its power limit under any load (NVML's TDP limit; ``tdp`` for
            nvidia-smi).
        memory_mhz: memory clock in MHz, one that the GPU supports. Default: not locked.
        device: the GPU. Default: the current one.

    Yields:
        The locked clocks.

    Raises:
        PermissionError: the process has no permission to lock clocks; the message gives the
            commands to run before and after instead.
        ValueError: the GPU does not support the clock, or the device is not a GPU.
        RuntimeError: this or another process has already locked the clocks, NVML is unavailable,
            or the GPU cannot lock its clocks.

    Warns:
        RuntimeWarning: a killed process left the clocks locked (they are reset first), or the call
            is outside of the main thread, where Python cannot handle signals.
    """
    where = resolve_gpu(device)
    with nvml.session(where) as gpu:
        _check_supported(gpu, sm_mhz, memory_mhz)
        lock = _Lock(where, gpu, LockedClocks(gpu.uuid, sm_mhz, memory_mhz))
        try:
            lock.engage()
            yield lock.clocks
        finally:
            lock.release()


def reset_clocks(device: torch.device | str | int | None = None) -> None:
    """Remove every lock of a GPU's clocks, including locks of other processes and tools.

    Args:
        device: the GPU. Default: the current one.

    Raises:
        PermissionError: the process has no permission to reset clocks; the message gives the
            command to run.
        ValueError: the device is not a GPU.
        RuntimeError: a running process has locked the clocks with :func:`locked_clocks`, or NVML
            is unavailable.
    """
    with nvml.session(resolve_gpu(device)) as gpu, exclusive_state() as folder:
        path = _path(folder, gpu.uuid)
        with contextlib.suppress(_RecordError):  # resetting also removes an unreadable file
            record = _read(path)
            if record is not None and record.is_in_place():
                raise RuntimeError(_lock_conflict(record))
        _reset_all(gpu)
        path.unlink(missing_ok=True)


def left_over(device: torch.device | str | int | None = None) -> str:
    """Describe in one sentence the lock that a killed process left on a GPU; empty for none.

    Raises:
        ValueError: the device is not a GPU.
        RuntimeError: NVML is unavailable.
    """
    with nvml.session(resolve_gpu(device)) as gpu:
        try:
            record = _read(_path(state_folder(), gpu.uuid))
        except _RecordError as error:
            return str(error)
    return "" if record is None or record.is_in_place() else str(record)


_warned: set[str] = set()


def warn_of_left_over(device: torch.device | str | int | None) -> None:
    """Warn of the finding of :func:`left_over`, once per process."""
    sentence = left_over(device)
    if sentence and sentence not in _warned:
        _warned.add(sentence)
        warnings.warn(sentence, RuntimeWarning, stacklevel=4)


def _check_supported(gpu: nvml.Gpu, sm_mhz: int | None, memory_mhz: int | None) -> None:
    supported_memory_mhz = gpu.ask("SupportedMemoryClocks")
    _check_clock("memory_mhz", memory_mhz, supported_memory_mhz, gpu.uuid)
    supported_sm_mhz = None
    if supported_memory_mhz:
        at_mhz = max(supported_memory_mhz) if memory_mhz is None else memory_mhz
        supported_sm_mhz = gpu.ask("SupportedGraphicsClocks", at_mhz)
    _check_clock("sm_mhz", sm_mhz, supported_sm_mhz, gpu.uuid)


def _check_clock(
    name: str, clock_mhz: int | None, supported_mhz: list[int] | None, uuid: str
) -> None:
    if clock_mhz is None:
        return
    check_whole(name, clock_mhz)
    # If NVML does not list the supported clocks, it reports an unsupported one when it is set.
    if supported_mhz and clock_mhz not in supported_mhz:
        nearest = sorted(sorted(supported_mhz, key=lambda other: abs(other - clock_mhz))[:2])
        raise ValueError(
            f"{name} must be a clock that {uuid} supports, got {clock_mhz} MHz; the nearest "
            f"are {' and '.join(map(str, nearest))} MHz"
        )


# Locks that this process holds.
_held: list[_Lock] = []


class _Lock:
    """A lock of one GPU's clocks, inside an NVML session that lasts as long."""

    def __init__(self, device: torch.device, gpu: nvml.Gpu, clocks: LockedClocks) -> None:
        self.clocks = clocks
        self._device = device
        self._gpu = gpu
        self._pid = os.getpid()
        self._path = _path(state_folder(), clocks.gpu)
        self._to_reset: list[str] = []

    def engage(self) -> None:
        with exclusive_state():
            record = _read(self._path)
            if record is not None:
                if record.is_in_place():
                    raise RuntimeError(_lock_conflict(record))
                warnings.warn(f"{record}; it is done now", RuntimeWarning, stacklevel=4)
                _reset_all(self._gpu)
            _held.append(self)
            _write(self._path, self.clocks)
        _handle_signals()
        base = self._gpu.nvml.NVML_CLOCK_LIMIT_ID_TDP
        self._set("Gpu", base if self.clocks.sm_mhz is None else self.clocks.sm_mhz)
        if self.clocks.memory_mhz is not None:
            self._set("Memory", self.clocks.memory_mhz)

    def _set(self, which: str, clock_mhz: int) -> None:
        nvml_ = self._gpu.nvml
        advice = f"`{self.clocks.lock_command}` before, and `{self.clocks.reset_command}` after"
        with _explaining(nvml_, f"locking the clocks of {self.clocks.gpu}", advice):
            # Recorded first: a signal can arrive at any time.
            self._to_reset.append(which)
            try:
                getattr(nvml_, f"nvmlDeviceSet{which}LockedClocks")(
                    self._gpu.handle, clock_mhz, clock_mhz
                )
            except nvml_.NVMLError:
                self._to_reset.remove(which)
                raise

    def release(self) -> None:
        # A forked child has a copy of its parent's list.
        if self not in _held or os.getpid() != self._pid:
            return
        doing = f"resetting the clocks of {self.clocks.gpu}"
        try:
            # A separate session: at interpreter exit, the block's session may have ended.
            with (
                nvml.session(self._device) as gpu,
                _explaining(gpu.nvml, doing, f"`{self.clocks.reset_command}`"),
            ):
                for which in self._to_reset:
                    getattr(gpu.nvml, f"nvmlDeviceReset{which}LockedClocks")(gpu.handle)
            self._path.unlink(missing_ok=True)
        except (OSError, RuntimeError):  # after an interrupt, the interpreter's exit resets
            self._forget()
            raise
        self._forget()

    def _forget(self) -> None:
        if self in _held:  # a signal may have removed it already
            _held.remove(self)
        _stop_handling_signals()


def _reset_all(gpu: nvml.Gpu) -> None:
    advice = f"`sudo nvidia-smi -i {gpu.uuid} -rgc`"
    with _explaining(gpu.nvml, f"resetting the clocks of {gpu.uuid}", advice):
        gpu.nvml.nvmlDeviceResetGpuLockedClocks(gpu.handle)
        # A GPU that cannot lock its memory clock cannot reset it either.
        with contextlib.suppress(gpu.nvml.NVMLError_NotSupported):
            gpu.nvml.nvmlDeviceResetMemoryLockedClocks(gpu.handle)


@contextlib.contextmanager
def _explaining(nvml_: Any, what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except nvml_.NVMLError_NoPermission as error:
        raise PermissionError(
            f"{what} needs root's rights, which this process does not have; run {advice}"
        ) from error
    except nvml_.NVMLError as error:
        raise RuntimeError(f"{what} failed: {error}") from error


def _handle_signals() -> None:
    if threading.current_thread() is not threading.main_thread():
        if signal.getsignal(signal.SIGTERM) is not _restore_and_end:
            warnings.warn(
                "clocks that are locked outside of the main thread stay locked if a signal ends "
                "the process, since Python handles signals in the main thread only",
                RuntimeWarning,
                stacklevel=5,
            )
        return
    for number in _DEADLY_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _restore_and_end)


def _stop_handling_signals() -> None:
    if _held or threading.current_thread() is not threading.main_thread():
        return
    for number in _DEADLY_SIGNALS:
        if signal.getsignal(number) is _restore_and_end:
            signal.signal(number, signal.SIG_DFL)


def _restore_and_end(number: int, _frame: FrameType | None) -> None:
    try:
        _restore_all()
    except (OSError, RuntimeError) as error:
        print(f"convtime: {error}", file=sys.stderr)
    finally:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


@atexit.register
def _restore_all() -> None:
    with contextlib.ExitStack() as every:
        for lock in _held:
            every.callback(lock.release)


def _lock_conflict(record: LockRecord) -> str:
    who = "this process" if record.pid == os.getpid() else f"process {record.pid}"
    return (
        f"the clocks of {record.clocks.gpu} are already locked ({record.clocks}) by {who}, since "
        f"{record.since}; locks can neither be nested nor shared"
    )


def _path(folder: Path, uuid: str) -> Path:
    return folder / f"clocks-{uuid}.json"


class _RecordError(RuntimeError):
    pass


def _read(path: Path) -> LockRecord | None:
    """Read the record in a file; return None if it is missing or was written before a reboot."""
    try:
        record = LockRecord.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, PermissionError):  # another user's folder has no record of ours
        return None
    except ValueError as error:
        raise _RecordError(
            f"{path}, which says which clocks are locked, is not of this version of convtime; call "
            "convtime.reset_clocks() once no other process uses the GPU"
        ) from error
    return record if record.boot == _boot() else None


def _write(path: Path, clocks: LockedClocks) -> None:
    record = LockRecord(
        clocks=clocks,
        pid=os.getpid(),
        process_start=_process_start(os.getpid()),
        boot=_boot(),
        since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    replace_file(path, record.to_json(), mode=0o600)


def _process_start(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    # A zombie has ended. In proc(5), field 3 is the state and field 22 is the start time.
    return None if state in "ZX" else int(fields[18])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # some sandboxes lack this file, but they do not outlive a reboot
        return ""
