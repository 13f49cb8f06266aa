"""Processes that are the ranks of a process group, forked from one that has loaded everything.

The parent must not have run parallel work of torch's: its threads do not exist in a child.
"""

import contextlib
import dataclasses
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

HOST = "127.0.0.1"
_NOTICE_NS = 1_000_000  # between an appointment and its instant
# For which the process that holds the store outlives its own work, where others do not end.
_STORE_SECONDS = 0.5

Body = Callable[[int], Any]


@dataclasses.dataclass
class Outcome:
    """What came of a rank: the value that its body returned, or the error that it raised.

    `status` is as os.waitpid gives it, or None where the process had to be killed; `seconds` is
    from the launch to its end.
    """

    value: Any = None
    error: str = ""
    text: str = ""
    status: int | None = None
    seconds: float = 0.0


class Appointments:
    """Instants that two ranks meet at, in memory that processes share which are forked later."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 18)

    def meet(self, rank: int) -> None:
        """Return when both ranks are here; once only."""
        self._memory[16 + rank] = 1
        while not all(self._memory[16:]):
            time.sleep(1e-4)

    def late(self, rank: int, nanoseconds: int, ahead: int = 0) -> Callable[[Any], None]:
        """An all-reduce at which rank 1 arrives later than rank 0 by so much.

        Both compute until their instant, and so come to the all-reduce in the same state. Rank 0
        makes the appointments. `ahead` is this process's monotonic clock less rank 0's.
        """
        import torch.distributed as dist

        calls = [0]
        group: Any = dist.group.WORLD

        def late(x: Any) -> None:
            calls[0] += 1
            if rank == 0:
                appointment = time.monotonic_ns() + _NOTICE_NS
                self._memory[8:16] = appointment.to_bytes(8, "little")
                self._memory[:8] = calls[0].to_bytes(8, "little")
            while int.from_bytes(self._memory[:8], "little") < calls[0]:
                pass
            end = int.from_bytes(self._memory[8:16], "little") + rank * nanoseconds
            while time.monotonic_ns() - ahead < end:
                pass
            group.allreduce([x]).wait()

        return late


def launch(
    size: int,
    body: Body,
    *,
    seconds: float = 60.0,
    watch: Callable[[list[int]], None] | None = None,
    before_fork: Callable[[int], None] | None = None,
    urgent: bool = False,
    backend: str = "gloo",
) -> list[Outcome]:
    """Runs body(rank), which returns what JSON can hold, in each of several processes with a group.

    Ranks that have not ended `seconds` after the return of `watch` are killed; that is called in
    the parent with the process ids, once all are started. Urgent ranks have a core each, and the
    highest priority of ordinary processes, which takes the permission to raise it, so that other
    load disturbs them less. With "nccl", each rank has the GPU of its number.
    """
    sys.stdout.flush()
    ranks = []
    # Bound before the fork: between the search for a free port and its use, others could take it.
    with socket.create_server((HOST, 0)) as listener:
        for rank in range(size):
            if before_fork is not None:
                before_fork(rank)
            group = _process_group(rank, size, listener, backend)  # is entered by the rank alone
            ranks.append(_fork(rank, group, body, urgent=urgent))
    if watch is not None:
        watch([pid for pid, _ in ranks])
    begin = time.monotonic()
    outcomes = [Outcome() for _ in ranks]
    told = [b""] * size
    running = {*range(size)}
    while running and time.monotonic() < begin + seconds:
        readable, _, _ = select.select([ranks[rank][1] for rank in running], [], [], 0.02)
        for rank in sorted(running):
            pid, pipe = ranks[rank]
            if pipe in readable:
                told[rank] += os.read(pipe, 1 << 20)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                while piece := os.read(pipe, 1 << 20):
                    told[rank] += piece
                outcomes[rank] = Outcome(status=status, seconds=time.monotonic() - begin)
                running.discard(rank)
    for rank, (pid, pipe) in enumerate(ranks):
        if rank in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(pipe)
        if told[rank]:
            with contextlib.suppress(ValueError):  # of a rank that was killed while it wrote
                outcomes[rank] = dataclasses.replace(outcomes[rank], **json.loads(told[rank]))
    return outcomes


def _fork(
    rank: int, group: contextlib.AbstractContextManager[None], body: Body, *, urgent: bool
) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    if urgent:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    code, told = 0, {}
    try:
        with group:
            told = {"value": body(rank)}
    except BaseException as error:  # whatever it is, the parent is told
        code, told = 1, {"error": type(error).__name__, "text": str(error)}
        if os.environ.get("RANK_TRACEBACKS"):
            traceback.print_exc()
    with contextlib.suppress(OSError):
        os.write(writing, json.dumps(told).encode())
    os._exit(code)


@contextlib.contextmanager
def _process_group(rank: int, size: int, listener: socket.socket, backend: str) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    port = listener.getsockname()[1]
    listening = listener.detach()
    if rank > 0:
        os.close(listening)
    patience = timedelta(seconds=30)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        HOST,
        port,
        size,
        is_master=rank == 0,
        timeout=patience,
        master_listen_fd=listening if rank == 0 else None,
    )
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=patience, device_id=device
    )
    try:
        yield
    finally:
        # Rank 0 holds the store that others may still read; not all of them come here.
        with contextlib.suppress(RuntimeError):
            store.set(f"done/{rank}", "")
            end = time.monotonic() + _STORE_SECONDS
            others = [f"done/{other}" for other in range(1, size)]
            while rank == 0 and time.monotonic() < end and not store.check(others):
                time.sleep(0.005)
