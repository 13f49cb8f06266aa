"""An executor with a process for each GPU, or for each share of the CPUs, of this machine.

A process that is killed is replaced, and its call goes to the next free process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from convtime.core.errors import InputError, first_line
from convtime.device.cpu import by_core
from convtime.device.resolve import resolve_device
from convtime.view.wording import counted

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MOST_DEATHS = 2  # of processes during one call
_MOST_STARTS = 10  # of processes that are killed before one is ready
_context = multiprocessing.get_context("spawn")


class WorkerDiedError(Exception):
    """A call ended several worker processes."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a worker process runs.

    Attributes:
        cpus: the CPUs that it may use; None for those of the parent.
        gpu: the only GPU that it sees, as in CUDA_VISIBLE_DEVICES; empty to change nothing.
    """

    cpus: frozenset[int] | None = None
    gpu: str = ""


def places(workers: object, requested: torch.device | str | int | None) -> list[Place]:
    """Return the places of a pool's workers.

    Args:
        workers: ``gpus`` for a worker on each GPU, or the number of workers.
        requested: the device of the run; None for the default.

    Raises:
        InputError: there are fewer GPUs or CPUs than workers, or the device is a certain GPU.
    """
    is_number = isinstance(workers, int) and not isinstance(workers, bool) and workers > 0
    if not is_number and workers != "gpus":
        raise InputError(
            "executor must be a number of local workers, 'gpus' or a concurrent.futures.Executor, "
            f"got {workers!r}"
        )
    device = resolve_device(requested)
    if requested is not None and torch.device(requested).index is not None:
        raise InputError(
            f"device must not be a certain GPU with local workers, which have one GPU each, got "
            f"{str(requested)!r}; use 'cuda', or leave it out"
        )
    if workers == "gpus" and device.type == "cpu":
        raise InputError(
            "executor must be a number of workers if the device is the CPU, got 'gpus'; use "
            "executor=2, for example"
        )
    if device.type == "cpu":
        available, all_places = "CPUs", [Place(cpus) for cpus in _shares(workers)]
    else:
        available, all_places = "GPUs", [Place(gpu=gpu) for gpu in _visible_gpus()]
    count = len(all_places) if workers == "gpus" else int(str(workers))
    if count > len(all_places):
        raise InputError(
            f"executor must be at most {len(all_places)}, the number of {available}, got {count}"
        )
    return all_places[:count]


def _shares(workers: Any) -> list[frozenset[int]]:
    """Return equal shares of this process's CPUs; one CPU each if there are too few."""
    cpus = by_core(os.sched_getaffinity(0))
    size = max(1, len(cpus) // workers)
    return [frozenset(cpus[start : start + size]) for start in range(0, len(cpus), size)]


def _visible_gpus() -> list[str]:
    count = torch.cuda.device_count()
    named = os.environ.get(_VISIBLE)
    gpus = [*map(str, range(count))] if named is None else named.split(",")
    return [gpu.strip() for gpu in gpus[:count]]


@dataclasses.dataclass
class _Call:
    """A call that a process makes.

    Attributes:
        content: the pickled function and arguments.
        future: its result.
        deaths: number of processes that ended during it.
    """

    content: bytes
    future: Future[Any]
    deaths: int = 0


@dataclasses.dataclass(frozen=True)
class _Process:
    process: BaseProcess
    pipe: Connection[Any, Any]


class LocalPool(Executor):
    """An executor of this machine's processes, which all start at once.

    Each process belongs to a thread of this one, which starts it, sends calls, and waits for their
    results.

    Args:
        where: the place of each process.
    """

    def __init__(self, where: Sequence[Place]) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # for the fields below, and for starting and ending processes
        self._processes: dict[int, _Process] = {}
        self._broken = ""  # why the pool takes no calls
        self._threads = torch.get_num_threads()
        self._owners = [
            threading.Thread(target=self._own, args=(number, place), daemon=True)
            for number, place in enumerate(where)
        ]
        for owner in self._owners:
            owner.start()

    @property
    def pids(self) -> list[int]:
        """The process IDs of the workers that run."""
        with self._lock:
            return [each.process.pid or 0 for each in self._processes.values()]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a process make a call; see :class:`concurrent.futures.Executor`."""
        call = _Call(pickle.dumps((fn, args, kwargs)), Future())
        with self._lock:
            if self._broken:
                raise BrokenExecutor(self._broken)
            self._calls.put(call)
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """End all processes at once, also those that are in a call."""
        with self._lock:
            self._broken = self._broken or "the pool was shut down"
            for each in self._processes.values():
                each.process.kill()
        for _ in self._owners:
            self._calls.put(None)
        for owner in self._owners:
            owner.join()
        self._fail_all()

    def _own(self, number: int, place: Place) -> None:
        """Run a thread: keep a process at a place, and have it make one call after the other."""
        # A process inherits both from the thread that starts it. Ctrl-C is for the parent alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if place.cpus is not None:
            os.sched_setaffinity(0, place.cpus)
        while self._start(number, place):
            call = self._calls.get()
            while call is not None and self._made(number, call):
                call = self._calls.get()
            if call is None:
                self._end(number)
                return
            reason = self._end(number)
            if call.deaths < _MOST_DEATHS:
                self._calls.put(call)
                continue
            deaths = counted(call.deaths, "worker process", "worker processes")
            told = f"{deaths} ended while measuring it, the last {reason}"
            call.future.set_exception(WorkerDiedError(told))
        self._fail_all()

    def _start(self, number: int, place: Place) -> bool:
        """Start a process, and wait until it is ready; False if the pool has ended."""
        for _ in range(_MOST_STARTS):
            ours, theirs = _context.Pipe()
            with self._lock:
                if self._broken:
                    return False
                process = _context.Process(target=_serve, args=(theirs, self._threads))
                with _seeing(place.gpu):
                    process.start()
                self._processes[number] = _Process(process, ours)
            theirs.close()  # so that the pipe ends with the process
            try:
                ours.recv()
            except (EOFError, OSError):
                reason = f"a worker process ended {self._end(number)} before it was ready"
                if (process.exitcode or 0) > 0:  # which another process would repeat
                    reason += (
                        "; its output is above, and a script must call convtime only under if "
                        "__name__ == '__main__', because workers import it"
                    )
                    break
            else:
                return True
        with self._lock:
            self._broken = self._broken or reason
        return False

    def _made(self, number: int, call: _Call) -> bool:
        """Have the process make a call; False if the process ended."""
        if not (call.future.running() or call.future.set_running_or_notify_cancel()):
            return True
        pipe = self._processes[number].pipe
        try:
            pipe.send_bytes(call.content)
        except OSError:  # it ended before this call
            return False
        try:
            answer = pipe.recv_bytes()
        except (EOFError, OSError):
            call.deaths += 1
            return False
        try:
            succeeded, result = pickle.loads(answer)  # noqa: S301 (from our own process)
        except Exception as error:
            succeeded, result = False, error
        if succeeded:
            call.future.set_result(result)
        else:
            call.future.set_exception(result)
        return True

    def _end(self, number: int) -> str:
        """Remove a process that has ended, and return how it ended, in words."""
        with self._lock:
            ended = self._processes.pop(number)
            ended.pipe.close()
            ended.process.kill()  # it may have closed the pipe and still run
            ended.process.join()
        code = ended.process.exitcode or 0
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

    def _fail_all(self) -> None:
        """Fail all calls that no process has yet."""
        with self._lock:
            for _ in range(self._calls.qsize()):
                call = self._calls.get_nowait()
                if call is None:  # which is for a thread that waits
                    self._calls.put(call)
                elif call.future.running() or call.future.set_running_or_notify_cancel():
                    call.future.set_exception(BrokenExecutor(self._broken))


@contextlib.contextmanager
def _seeing(gpu: str) -> Iterator[None]:
    """Let processes that start in the context see only one GPU.

    A process must have this in its environment when it starts: importing the user's script may
    already initialize CUDA.
    """
    before = os.environ.get(_VISIBLE)
    if gpu:
        os.environ[_VISIBLE] = gpu
    try:
        yield
    finally:
        if gpu and before is None:
            del os.environ[_VISIBLE]
        elif gpu and before is not None:
            os.environ[_VISIBLE] = before


def _serve(pipe: Connection[Any, Any], threads: int) -> None:
    """Main function of a worker process: make the calls that are sent, until the pipe ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(min(threads, len(os.sched_getaffinity(0))))
    pipe.send("ready")
    with contextlib.suppress(EOFError, OSError):
        while True:
            content = pipe.recv_bytes()
            try:
                fn, args, kwargs = pickle.loads(content)  # noqa: S301 (from the parent)
                answer = pickle.dumps((True, fn(*args, **kwargs)))
            except BaseException as error:  # an exit, too, is an error of the call
                answer = _pickled_error(error)
            pipe.send_bytes(answer)


def _pickled_error(error: BaseException) -> bytes:
    """Pickle the error of a call; a RuntimeError with its text stands for one that cannot be.

    Also for an exit or an interrupt, which would end the parent.
    """
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):  # whatever the error's own methods raise
            return pickle.dumps((False, error))
    return pickle.dumps((False, RuntimeError(first_line(error))))


def _end_with_parent() -> None:
    """End this process when its parent was killed, which leaves a long measurement running."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
