"""Processes that are the ranks of a process group, forked from one that has loaded everything.

The parent must not have run parallel work of torch's: its threads do not exist in a child.
"""

import contextlib
import dataclasses
import json
import mmap
import multiprocessing.connection
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

HOST = "127.0.0.1"
_NOTICE_NS = 1_000_000  # between an appointment and its instant
# For which the process that holds the store outlives its own work, where others do not end.
_STORE_SECONDS = 0.5

Body = Callable[[int], Any]


@dataclasses.dataclass
class Outcome:
    """What came of a rank: the value that its body returned, or the error that it raised.

    `seconds` is from the launch to its end; None where the process had to be killed.
    """

    value: Any = None
    error: str = ""
    text: str = ""
    seconds: float | None = None


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
    fork = multiprocessing.get_context("fork")
    ranks = []
    # Bound before the fork: between the search for a free port and its use, others could take it.
    with socket.create_server((HOST, 0)) as listener:
        for rank in range(size):
            if before_fork is not None:
                before_fork(rank)
            pipe, theirs = fork.Pipe(duplex=False)
            with theirs:  # so that the pipe ends with the rank
                group = _process_group(rank, size, listener, backend)  # entered by the rank alone
                process = fork.Process(target=_run, args=(rank, group, body, urgent, theirs))
                process.start()
            ranks.append((process, pipe))
    if watch is not None:
        watch([process.pid or 0 for process, _ in ranks])
    begin = time.monotonic()
    outcomes = [Outcome() for _ in ranks]
    running: dict[Any, int] = {pipe: rank for rank, (_, pipe) in enumerate(ranks)}
    while running and (left := begin + seconds - time.monotonic()) > 0:
        for ready in cast("list[Any]", multiprocessing.connection.wait(running, left)):
            rank = running[ready]
            try:
                outcomes[rank] = Outcome(*json.loads(ready.recv_bytes()))
            except (EOFError, OSError):  # it ended, perhaps while it wrote
                outcomes[rank].seconds = time.monotonic() - begin
                del running[ready]
    for process, pipe in ranks:
        if pipe in running:
            process.kill()
        process.join()
        pipe.close()
    return outcomes


def _run(
    rank: int,
    group: contextlib.AbstractContextManager[None],
    body: Body,
    urgent: bool,
    pipe: Any,
) -> None:
    if urgent:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    code, answer = 0, (None, "", "")
    try:
        with group:
            answer = (body(rank), "", "")
    except BaseException as error:  # whatever it is, the parent is told
        code, answer = 1, (None, type(error).__name__, str(error))
        if os.environ.get("RANK_TRACEBACKS"):
            traceback.print_exc()
    with contextlib.suppress(OSError):
        pipe.send_bytes(json.dumps(answer).encode())
    os._exit(code)  # without waiting for threads


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
