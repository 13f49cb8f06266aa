"""Locking a GPU's clocks for a while, and making sure that they do not stay locked.

NVML cannot be asked whether clocks are locked, and a lock outlives the process that made it. So a
file says so for as long as a lock is in place: it is written before, and removed after. Whoever
finds the file of a process that has died knows what was left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import fcntl
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

from convtime import nvml

SCHEMA = 1

#: By default these end a process without another word; Python raises KeyboardInterrupt for SIGINT.
_DEADLY_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class LockedClocks:
    """What :func:`locked_clocks` has locked.

    Attributes:
        gpu: its UUID.
        sm: the multiprocessors' clock in MHz, None for the base clock.
        memory: the memory's clock in MHz, None where it is not locked.
    """

    gpu: str
    sm: int | None
    memory: int | None

    @property
    def lock_command(self) -> str:
        """What does the same in a shell."""
        sm = "tdp,tdp" if self.sm is None else f"{self.sm},{self.sm}"
        return self._as_root(f"-lgc {sm}", self.memory and f"-lmc {self.memory},{self.memory}")

    @property
    def reset_command(self) -> str:
        """What undoes it in a shell."""
        return self._as_root("-rgc", self.memory and "-rmc")

    def _as_root(self, *actions: str | int | None) -> str:
        # nvidia-smi takes one of these at a time.
        return " && ".join(f"sudo nvidia-smi -i {self.gpu} {one}" for one in actions if one)

    def __str__(self) -> str:
        sm = "at the base clock" if self.sm is None else f"at {self.sm} MHz"
        return sm if self.memory is None else f"{sm}, memory at {self.memory} MHz"


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
    sm: int | None = None,
    memory: int | None = None,
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
        sm: the multiprocessors' clock in MHz, one that the GPU supports. Unless given: the base
            clock, which is the one that the GPU is rated to hold within its power limit under any
            load (NVML's TDP limit; ``tdp`` for nvidia-smi).
        memory: the memory's clock in MHz, one that the GPU supports; not locked unless given.
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
    where = nvml.resolve(device)
    with nvml.session(where) as gpu:
        _check_supported(gpu, sm, memory)
        lock = _Lock(where, gpu, LockedClocks(gpu.uuid, sm, memory))
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
    with nvml.session(nvml.resolve(device)) as gpu, _exclusive_folder():
        path = _path(_folder(), gpu.uuid)
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
    with nvml.session(nvml.resolve(device)) as gpu:
        try:
            record = _read(_path(_folder(), gpu.uuid))
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


def _check_supported(gpu: nvml.Gpu, sm: int | None, memory: int | None) -> None:
    memory_clocks = gpu.ask("SupportedMemoryClocks")
    _check_clock("memory", memory, memory_clocks, gpu.uuid)
    sm_clocks = None
    if memory_clocks:
        at = max(memory_clocks) if memory is None else memory
        sm_clocks = gpu.ask("SupportedGraphicsClocks", at)
    _check_clock("sm", sm, sm_clocks, gpu.uuid)


def _check_clock(name: str, clock: int | None, supported: list[int] | None, uuid: str) -> None:
    if clock is None:
        return
    if not isinstance(clock, int) or isinstance(clock, bool):
        raise ValueError(f"{name} must be a whole number of MHz, got {clock!r}")
    # Where NVML does not list the clocks, it still says itself when it is asked for others.
    if supported and clock not in supported:
        nearest = sorted(sorted(supported, key=lambda one: abs(one - clock))[:2])
        raise ValueError(
            f"{name} must be a clock that {uuid} supports, got {clock} MHz; the nearest "
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
        self._path = _path(_folder(), clocks.gpu)
        self._to_reset: list[str] = []

    def engage(self) -> None:
        with _exclusive_folder():
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
        self._set("Gpu", base if self.clocks.sm is None else self.clocks.sm)
        if self.clocks.memory is not None:
            self._set("Memory", self.clocks.memory)

    def _set(self, which: str, clock: int) -> None:
        nvml_ = self._gpu.nvml
        advice = f"`{self.clocks.lock_command}` before, and `{self.clocks.reset_command}` after"
        with _explained(nvml_, f"locking the clocks of {self.clocks.gpu}", advice):
            # Noted before, since a signal can come at any time.
            self._to_reset.append(which)
            try:
                getattr(nvml_, f"nvmlDeviceSet{which}LockedClocks")(self._gpu.handle, clock, clock)
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


def _folder() -> Path:
    """Where locks are written down: not in the runtime folder, which a logout removes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "convtime"


@contextlib.contextmanager
def _exclusive_folder() -> Iterator[None]:
    """Makes the folder, and keeps other processes out of it."""
    folder = _folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RuntimeError(
            f"{folder}, where locked clocks are written down, cannot be used ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder of your own"
        ) from error
    try:
        owner = os.fstat(descriptor).st_uid
        if owner != os.geteuid():
            raise RuntimeError(
                f"{folder} must belong to user {os.geteuid()}, but belongs to user {owner}; set "
                "XDG_CACHE_HOME to a folder of your own"
            )
        os.fchmod(descriptor, 0o700)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _path(folder: Path, uuid: str) -> Path:
    return folder / f"clocks-{uuid}.json"


class _RecordError(RuntimeError):
    pass


def _read(path: Path) -> LockRecord | None:
    """The record in a file; None where there is none, or where it is of before a reboot."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schema = data.pop("schema")
        record = LockRecord(**{**data, "clocks": LockedClocks(**data["clocks"])})
    except (FileNotFoundError, PermissionError):  # another user's folder has none of ours
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        schema = None
    if schema != SCHEMA:
        raise _RecordError(
            f"{path}, which says what clocks are locked, is not of this version of convtime; call "
            "convtime.reset_clocks() once no other process uses the GPU"
        )
    return record if record.boot == _boot() else None


def _write(path: Path, clocks: LockedClocks) -> None:
    record = LockRecord(
        clocks=clocks,
        pid=os.getpid(),
        process_start=_process_start(os.getpid()),
        boot=_boot(),
        since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"schema": SCHEMA, **dataclasses.asdict(record)}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
