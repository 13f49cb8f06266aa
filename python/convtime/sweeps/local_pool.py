"""An executor with a process for each GPU, or for each share of the CPUs, of this machine.

A process that is killed is replaced, and its call is made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from multiprocessing import spawn
from typing import Any

import torch

from convtime.core.child import Child, ChildError, job
from convtime.core.errors import InputError, first_line
from convtime.device.cpu import by_core
from convtime.device.resolve import resolve_device

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MOST_DEATHS = 2  # of processes during one call
_MOST_STARTS = 10  # of processes that are killed before one is ready
_is_importing_main = False  # in a worker


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


class LocalPool(ThreadPoolExecutor):
    """An executor of this machine's processes, which all start at once.

    Each process belongs to a thread of this one.

    Args:
        where: the place of each process.
    """

    def __init__(self, where: Sequence[Place]) -> None:
        if _is_importing_main:
            raise RuntimeError("a worker cannot start workers while it imports the script")
        main = spawn.get_preparation_data("worker")
        del main["authkey"]  # which cannot be sent, and is not needed
        first = job(_prepare, main, torch.get_num_threads())
        self._unused = [(Child(first, variables=_seeing(p), shows_output=True), p) for p in where]
        self._children = [child for child, _ in self._unused]
        self._own = threading.local()
        self._broken_by = ""  # why the pool takes no calls
        super().__init__(len(where), initializer=self._begin)
        for _ in where:
            super().submit(self._await_start)

    @property
    def pids(self) -> list[int]:
        """The process IDs of the workers that run."""
        return [pid for child in self._children if (pid := child.pid)]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a process make a call; see :class:`concurrent.futures.Executor`."""
        if self._broken_by:
            raise BrokenExecutor(self._broken_by)
        return super().submit(self._made, job(_call, fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End all processes at once, also those that are in a call."""
        self._broken_by = self._broken_by or "the pool was shut down"
        for child in self._children:
            child.kill()
        super().shutdown(wait, cancel_futures=cancel_futures)
        for child in self._children:
            child.end()

    def _begin(self) -> None:
        """Give a thread a child, which inherits the thread's CPUs."""
        self._own.child, place = self._unused.pop()
        if place.cpus is not None:
            os.sched_setaffinity(0, place.cpus)

    def _await_start(self) -> Child:
        """Return the thread's child when it is ready.

        Raises:
            BrokenExecutor: it cannot start, or the pool was shut down.
        """
        child: Child = self._own.child
        for _ in range(_MOST_STARTS):
            if self._broken_by:
                raise BrokenExecutor(self._broken_by)
            try:
                child.await_start()
            except ChildError as error:
                reason = f"a worker process {error} before it was ready"
                if (error.code or 0) > 0:  # which another process would repeat
                    reason += (
                        "; its output is above, and a script must call convtime only under if "
                        "__name__ == '__main__', because workers import it"
                    )
                    break
            else:
                return child
        self._broken_by = self._broken_by or reason
        raise BrokenExecutor(self._broken_by)

    def _made(self, call: bytes) -> Any:
        """Return the result of a call; if its process is killed, another one makes it again."""
        deaths = 0
        while True:
            child = self._await_start()
            try:
                return child.call(call, None)
            except ChildError as error:
                if error.__cause__ is not None:
                    raise error.__cause__ from None
                deaths += 1
                if deaths == _MOST_DEATHS:
                    with contextlib.suppress(ChildError):  # the pool was shut down
                        child.start()
                    raise WorkerDiedError(
                        f"{deaths} worker processes ended while measuring it, and the last {error}"
                    ) from None


def _seeing(place: Place) -> dict[str, str]:
    """Return the environment of a process: importing the user's script may initialize CUDA."""
    return {_VISIBLE: place.gpu} if place.gpu else {}


def _prepare(main: dict[str, Any], threads: int) -> None:
    """Import the main module of the parent, whose functions calls can name."""
    global _is_importing_main
    torch.set_num_threads(min(threads, len(os.sched_getaffinity(0))))
    _is_importing_main = True
    spawn.prepare(main)
    _is_importing_main = False


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:  # an error of the call, not of the worker
        raise RuntimeError(first_line(error)) from error
