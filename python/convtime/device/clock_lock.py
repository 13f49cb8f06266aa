"""Locking a GPU's clocks for a while, and making sure that they do not stay locked.

NVML cannot be asked whether clocks are locked, and a lock outlives the process that made it. So a
file says so for as long as a lock is in place: it is written before, and removed after. Whoever
finds the file of a process that has died knows what was left behind.
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
from convtime.core.files import exclusive_state, replace_file, state_folder
from convtime.device import nvml
from convtime.device.resolve import resolve_gpu

SCHEMA = "2.0"

#: By default these end a process without another word; Python raises KeyboardInterrupt for SIGINT.
_DEADLY_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class LockedClocks:
    """What :func:`locked_clocks` has locked.

    Attributes:
        gpu: its UUID.
        sm_mhz: the multiprocessors' clock, None for the base clock.
        memory_mhz: the memory's clock, None where it is not locked.
    """

    gpu: str
    sm_mhz: int | None
    memory_mhz: int | None

    @property
    def lock_command(self) -> str:
        """What does the same in a shell."""
        sm_mhz = "tdp,tdp" if self.sm_mhz is None else f"{self.sm_mhz},{self.sm_mhz}"
        memory_mhz = self.memory_mhz and f"-lmc {self.memory_mhz},{self.memory_mhz}"
        return self._as_root(f"-lgc {sm_mhz}", memory_mhz)

    @property
    def reset_command(self) -> str:
        """What undoes it in a shell."""
        return self._as_root("-rgc", self.memory_mhz and "-rmc")

    def _as_root(self, *actions: str | int | None) -> str:
        # nvidia-smi takes one of these at a time.
        return " && ".join(
            f"sudo nvidia-smi -i {self.gpu} {action}" for action in actions if action
        )

    def __str__(self) -> str:
        sm = "at the base clock" if self.sm_mhz is None else f"at {self.sm_mhz} MHz"
        return sm if self.memory_mhz is None else f"{sm}, memory at {self.memory_mhz} MHz"


@dataclasses.dataclass(frozen=True)
class LockRecord:
    """Who has locked which clocks; the content of a lock's file.

    Attributes:
        clocks: what is locked.
        pid: the process.
        process_start: when it began, in the kernel's ticks, since pids are used again.
        boot: the kernel's id of its own start, which ends every lock.
        since: UTC, in ISO format.
    """

    clocks: LockedClocks
    pid: int
    process_start: int | None
    boot: str
    since: str

    def is_in_place(self) -> bool:
        """Whether who locked will also reset."""
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
    """Keeps a GPU's clocks at fixed rates for a block of code.

    They are reset when the block is left, by an exception, too, and when the process exits or is
    ended by SIGTERM, SIGINT or SIGHUP. Signal handlers of your own stay in place: where they raise,
    the block is left; where they return, it goes on at the locked clocks. A process that is killed
    (SIGKILL) resets nothing: the next use of this function, ``trace_clocks`` or ``convtime doctor``
    says so.

    Resetting means no lock at all, also where nvidia-smi had locked other rates before: the driver
    does not tell what was locked.

    Args:
        sm_mhz: the multiprocessors' clock, one that the GPU supports. Unless given: the base
            clock, which is the one that the GPU is rated to hold within its power limit under any
            load (NVML's TDP limit; ``tdp`` for nvidia-smi).
        memory_mhz: the memory's clock, one that the GPU supports; not locked unless given.
        device: the GPU; the current one unless given.

    Yields:
        What is locked.

    Raises:
        PermissionError: without the right to lock; it says what to run instead, and after.
        ValueError: for a clock that the GPU does not support, and another device.
        RuntimeError: where the clocks are locked already, by this process or another one, where
            NVML cannot be used, or where the GPU cannot lock its clocks.

    Warns:
        RuntimeWarning: where clocks were left locked by a process that was killed (they are reset
            first); and outside of the main thread, where Python cannot handle signals.
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
    """Removes every lock of a GPU's clocks, whoever made it.

    Args:
        device: the GPU; the current one unless given.

    Raises:
        PermissionError: without the right to; it says what to run.
        ValueError: for another device.
        RuntimeError: where a process that is still running has locked them with
            :func:`locked_clocks`, or where NVML cannot be used.
    """
    with nvml.session(resolve_gpu(device)) as gpu, exclusive_state() as folder:
        path = _path(folder, gpu.uuid)
        with contextlib.suppress(_RecordError):  # this is the way to get rid of such a file
            record = _read(path)
            if record is not None and record.is_in_place():
                raise RuntimeError(_taken(record))
        _reset_all(gpu)
        path.unlink(missing_ok=True)


def left_over(device: torch.device | str | int | None = None) -> str:
    """What a process that was killed has left locked on a GPU, in a sentence; empty for nothing.

    Raises:
        ValueError: for another device.
        RuntimeError: where NVML cannot be used.
    """
    with nvml.session(resolve_gpu(device)) as gpu:
        try:
            record = _read(_path(state_folder(), gpu.uuid))
        except _RecordError as error:
            return str(error)
    return "" if record is None or record.is_in_place() else str(record)


_told: set[str] = set()


def warn_of_left_over(device: torch.device | str | int | None) -> None:
    """Says once in a process what :func:`left_over` finds."""
    sentence = left_over(device)
    if sentence and sentence not in _told:
        _told.add(sentence)
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
    if not isinstance(clock_mhz, int) or isinstance(clock_mhz, bool):
        raise ValueError(f"{name} must be a whole number, got {clock_mhz!r}")
    # Where NVML does not list the clocks, it still says itself when it is asked for others.
    if supported_mhz and clock_mhz not in supported_mhz:
        nearest = sorted(sorted(supported_mhz, key=lambda other: abs(other - clock_mhz))[:2])
        raise ValueError(
            f"{name} must be a clock that {uuid} supports, got {clock_mhz} MHz; the nearest "
            f"are {' and '.join(map(str, nearest))} MHz"
        )


# Locks that are in place in this process.
_held: list[_Lock] = []


class _Lock:
    """A lock of one GPU's clocks, within a session of NVML that lasts as long."""

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
                    raise RuntimeError(_taken(record))
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
        with _explained(nvml_, f"locking the clocks of {self.clocks.gpu}", advice):
            # Noted before, since a signal can come at any time.
            self._to_reset.append(which)
            try:
                getattr(nvml_, f"nvmlDeviceSet{which}LockedClocks")(
                    self._gpu.handle, clock_mhz, clock_mhz
                )
            except nvml_.NVMLError:
                self._to_reset.remove(which)
                raise

    def release(self) -> None:
        # A forked child has a copy of what its parent holds.
        if self not in _held or os.getpid() != self._pid:
            return
        doing = f"resetting the clocks of {self.clocks.gpu}"
        try:
            # A session of its own: at the interpreter's exit, the block's may have ended.
            with (
                nvml.session(self._device) as gpu,
                _explained(gpu.nvml, doing, f"`{self.clocks.reset_command}`"),
            ):
                for which in self._to_reset:
                    getattr(gpu.nvml, f"nvmlDeviceReset{which}LockedClocks")(gpu.handle)
            self._path.unlink(missing_ok=True)
        except (OSError, RuntimeError):  # not an interrupt: then the interpreter's exit resets
            self._forget()
            raise
        self._forget()

    def _forget(self) -> None:
        if self in _held:  # which a signal may have come before
            _held.remove(self)
        _stop_handling_signals()


def _reset_all(gpu: nvml.Gpu) -> None:
    advice = f"`sudo nvidia-smi -i {gpu.uuid} -rgc`"
    with _explained(gpu.nvml, f"resetting the clocks of {gpu.uuid}", advice):
        gpu.nvml.nvmlDeviceResetGpuLockedClocks(gpu.handle)
        # A GPU that cannot lock its memory's clock cannot reset it either.
        with contextlib.suppress(gpu.nvml.NVMLError_NotSupported):
            gpu.nvml.nvmlDeviceResetMemoryLockedClocks(gpu.handle)


@contextlib.contextmanager
def _explained(nvml_: Any, what: str, advice: str) -> Iterator[None]:
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


def _taken(record: LockRecord) -> str:
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
    """The record in a file; None where there is none, or where it is of before a reboot."""
    try:
        record = codec.decode(LockRecord, json.loads(path.read_text(encoding="utf-8")), SCHEMA)
    except (FileNotFoundError, PermissionError):  # another user's folder has none of ours
        return None
    except ValueError as error:
        raise _RecordError(
            f"{path}, which says what clocks are locked, is not of this version of convtime; call "
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
    replace_file(path, json.dumps(codec.encode(record, SCHEMA)), mode=0o600)


def _process_start(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    # Zombies have ended; the start is field 22 of proc(5), and the state is field 3.
    return None if state in "ZX" else int(fields[18])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # some sandboxes have no such file, and do not outlive a reboot
        return ""
