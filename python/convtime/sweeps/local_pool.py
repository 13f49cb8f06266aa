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

from convtime.core.checks import as_whole, require
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
class Resources:
    """What a worker process may use.

    Attributes:
        cpus: the CPUs that it may use; None for those of the parent.
        gpu: the only GPU that it sees, as in CUDA_VISIBLE_DEVICES; empty to change nothing.
    """

    cpus: frozenset[int] | None = None
    gpu: str = ""


def worker_resources(
    workers: object, requested: torch.device | str | int | None
) -> list[Resources]:
    """Return the resources of each of a pool's workers.

    Args:
        workers: ``gpus`` for a worker on each GPU, or the number of workers.
        requested: the device of the run; None for the default.

    Raises:
        InputError: there are fewer GPUs or CPUs than workers, or the device is a certain GPU.
    """
    count = None if workers == "gpus" else as_whole(workers)
    require(
        workers == "gpus" or (count is not None and count > 0),
        "executor must be a number of local workers, 'gpus' or a concurrent.futures.Executor, "
        f"got {workers!r}",
    )
    device = resolve_device(requested)
    require(
        requested is None or torch.device(requested).index is None,
        "device must not be a certain GPU with local workers, which have one GPU each, got "
        f"{str(requested)!r}; use 'cuda', or leave it out",
    )
    if device.type == "cuda":
        kind, visible = "GPUs", os.environ.get(_VISIBLE, "")
        gpu_count = torch.cuda.device_count()
        gpus = visible.split(",") if visible else [*map(str, range(gpu_count))]
        available = [Resources(gpu=gpu.strip()) for gpu in gpus[:gpu_count]]
        count = len(available) if count is None else count
    elif count is None:
        raise InputError(
            "executor must be a number of workers if the device is the CPU, got 'gpus'; use "
            "executor=2, for example"
        )
    else:
        kind, cpus = "CPUs", by_core(os.sched_getaffinity(0))
        size = max(1, len(cpus) // count)  # if there are too few CPUs, each worker has one
        shares = [cpus[start : start + size] for start in range(0, len(cpus), size)]
        available = [Resources(frozenset(share)) for share in shares]
    require(
        count <= len(available),
        f"executor must be at most {len(available)}, the number of {kind}, got {count}",
    )
    return available[:count]


class LocalPool(ThreadPoolExecutor):
    """An executor of this machine's processes, which all start at once.

    Each process belongs to a thread of this one.

    Args:
        resources: the resources of each process.
    """

    def __init__(self, resources: Sequence[Resources]) -> None:
        if _is_importing_main:
            raise RuntimeError("a worker cannot start workers while it imports the script")
        main = spawn.get_preparation_data("worker")
        del main["authkey"]  # which cannot be sent, and is not needed
        first = job(_prepare, main, torch.get_num_threads())
        self._unused = []
        for each in resources:
            # In the environment, as importing the user's script may initialize CUDA.
            variables = {_VISIBLE: each.gpu} if each.gpu else {}
            self._unused.append((Child(first, variables=variables, shows_output=True), each))
        self._children = [child for child, _ in self._unused]
        self._own = threading.local()
        self._broken_by = ""  # why the pool takes no calls
        super().__init__(len(resources), initializer=self._begin)
        for _ in resources:
            super().submit(self._await_start)

    @property
    def pids(self) -> list[int]:
        """The process IDs of the workers that run."""
        return [pid for child in self._children if (pid := child.pid)]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a process make a call; see :class:`concurrent.futures.Executor`."""
        if self._broken_by:
            raise BrokenExecutor(self._broken_by)
        return super().submit(self._call_in_child, job(_call, fn, args, kwargs))

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
        self._own.child, resources = self._unused.pop()
        if resources.cpus is not None:
            os.sched_setaffinity(0, resources.cpus)

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

    def _call_in_child(self, call: bytes) -> Any:
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
