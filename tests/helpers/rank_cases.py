"""What the ranks of tests/distributed/test_measure.py do: forks them, and prints what they found.

One process loads torch; each case forks its ranks. Prints a line of JSON for each case.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common.rank_processes import HOST, Appointments, launch

import convtime
import convtime.distributed.measure
from convtime import compare, time_op

FEW: dict[str, Any] = {"stop": "count", "max_samples": 40, "warmup": 2, "timeout": 20}
LATE_NS = 500_000
SLOW_SECONDS = 5e-3
HANG_TIMEOUT = 5
OTHER_CLOCK_SECONDS = 1000
CLONE_NEWTIME = 0x80
APPOINTMENTS = Appointments()  # in memory that forked processes share


@contextlib.contextmanager
def clock_ahead(seconds: int) -> Iterator[Callable[[int], None]]:
    """Gives rank 1 a monotonic clock of its own, in a time namespace, as on another machine.

    Yields what launch() calls before it forks a rank. OSError without the permission.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def before_fork(rank: int) -> None:
        if rank == 1:
            if libc.unshare(CLONE_NEWTIME):
                raise OSError(ctypes.get_errno(), "no permission for a time namespace")
            Path("/proc/self/timens_offsets").write_text(f"monotonic {seconds} 0")

    usual = os.open("/proc/self/ns/time", os.O_RDONLY)
    try:
        yield before_fork
    finally:
        if libc.setns(usual, CLONE_NEWTIME):
            raise OSError(ctypes.get_errno(), "could not return to the usual clock")
        os.close(usual)


def said_by(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def facts(measured: convtime.Measurement) -> dict[str, Any]:
    found = measured.ranks
    assert found is not None
    return {
        "seconds": measured.seconds,
        "stop_reason": measured.stop_reason,
        "ranks": dataclasses.asdict(found),
        "printed": str(measured),
        "details": measured.details(),
        "again": convtime.Measurement.from_dict(json.loads(measured.to_json())) == measured,
    }


def measures(rank: int) -> dict[str, Any]:
    """Many measurements by the same two ranks."""
    x = torch.zeros(64 * 1024)
    found: dict[str, Any] = {}
    calls = [0, 0]

    def counted() -> None:
        calls[0] += 1
        dist.all_reduce(x)

    found["all_reduce"] = facts(time_op(counted, name="all_reduce", budget=0.3, timeout=20))
    found["calls"] = calls[0]

    found["late"] = facts(
        time_op(APPOINTMENTS.late(rank, LATE_NS), x, group=dist.group.WORLD, **FEW)
    )

    def slow() -> None:
        time.sleep(rank * SLOW_SECONDS)
        dist.all_reduce(x)

    found["slow"] = facts(time_op(slow, group=dist.group.WORLD, **FEW))

    gathered, scattered, small = torch.empty(2048), torch.empty(512), torch.ones(1024)
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    batch = torch.ones(8, 64)
    operations: dict[str, Callable[[], object]] = {
        "functional all_gather": lambda: functional.wait_tensor(
            functional.all_gather_tensor(small, 0, dist.group.WORLD)
        ),
        "all_gather": lambda: dist.all_gather_into_tensor(gathered, small),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(scattered, small),
        "broadcast": lambda: dist.broadcast(small, 0),
        "send": lambda: dist.send(small, 1) if rank == 0 else dist.recv(small, 0),
        "all_to_all": lambda: dist.all_to_all_single(scattered, small[:512]),
        "ddp": lambda: layer(batch).sum().backward(),
        "twice": lambda: (dist.all_reduce(x), dist.all_reduce(x)),
        "barrier": dist.barrier,
    }
    for name, call in operations.items():
        found[name] = facts(time_op(call, group=dist.group.WORLD, **FEW))
    found["backward"] = facts(time_op(layer, batch, backward=True, **FEW))

    def slow_twice() -> None:
        slow()
        dist.all_reduce(x)

    found["slow twice"] = facts(time_op(slow_twice, group=dist.group.WORLD, **FEW))

    compared = compare(
        {"once": lambda: dist.all_reduce(x), "twice": operations["twice"]}, budget=0.4, timeout=20
    )
    found["compared"] = {
        "operations": [
            len(each.ranks.collectives) for each in compared.measurements.values() if each.ranks
        ],
        "seconds": [each.seconds for each in compared.measurements.values()],
        "same_result": str(compared.same_results["twice"]),
        "interference": compared.interference_reason,
    }
    found["local"] = time_op(torch.relu, x, max_samples=10, stop="count").ranks is None
    found["only one"] = rank == 1 or time_op(torch.relu, x, **FEW).ranks is None

    large = torch.zeros(1 << 20)

    def refused(**options: Any) -> list[str]:
        return said_by(lambda: time_op(counted, **{"group": dist.group.WORLD, **options}))

    def unfinished(**options: Any) -> Any:
        time.sleep(0.05 * rank)  # so that rank 0's operation cannot end before it is looked at
        return dist.all_reduce(large, async_op=True, **options)

    found["refused"] = {
        "race": said_by(lambda: convtime.race([counted, operations["twice"]])),
        "quick": refused(quick=True),
        "warmup": refused(warmup=0.1),
        "verdict": refused(stop="verdict"),
        "over": said_by(lambda: compare([counted], {"budget": [1, 2]}, group=dist.group.WORLD)),
        "options": refused(budget=1 + rank, timeout=20),
        "timeout": refused(timeout=1e10),
        "pin": refused(pin=[None, 1 << 20][rank], timeout=20),
        "unfinished": said_by(
            lambda: time_op(unfinished, kwargs={"group": dist.group.WORLD}, **FEW)
        ),
        "unfinished tensor": said_by(
            lambda: time_op(
                lambda: functional.all_reduce(large, "sum", dist.group.WORLD),
                group=dist.group.WORLD,
                **FEW,
            )
        ),
        "one rank": refused(budget=[1, "long"][rank], timeout=20),
    }
    found["afterwards"] = time_op(counted, group=dist.group.WORLD, **FEW).ranks is not None
    return found


def subgroup(rank: int) -> dict[str, Any]:
    """Three ranks, of which two measure."""
    group: Any = dist.new_group([0, 2])
    if rank == 1:
        return {"outside": said_by(lambda: time_op(torch.relu, torch.ones(1), group=group))}
    x = torch.ones(1000)
    return facts(time_op(lambda: dist.all_reduce(x, group=group), **FEW))


def other_clock(rank: int) -> dict[str, Any]:
    """The last rank's monotonic clock differs from the other's by much."""
    call = APPOINTMENTS.late(rank, LATE_NS, ahead=rank * OTHER_CLOCK_SECONDS * 10**9)
    return facts(time_op(call, torch.zeros(1000), group=dist.group.WORLD, **FEW))


def with_other_clock() -> list[Any]:
    with clock_ahead(OTHER_CLOCK_SECONDS) as before_fork:
        return launch(2, other_clock, before_fork=before_fork)


def faulty(rank: int, *, kind: str, at: int) -> list[str]:
    """Rank 1, or each rank, fails in one of its calls."""
    x = torch.zeros(1000)
    calls = [0]

    def call() -> None:
        calls[0] += 1
        if kind == "raise both" and calls[0] == at:
            APPOINTMENTS.meet(rank)  # or the first could end the other before it raises
            raise ValueError(f"planted {rank}")
        if rank == 1 and calls[0] == at:
            if kind == "raise":
                raise ValueError("planted")
            if kind == "exit":
                sys.exit(7)
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)
        dist.all_reduce(x)

    begin = time.monotonic()
    timeout = HANG_TIMEOUT if kind == "hang" else 20
    said = said_by(lambda: time_op(call, group=dist.group.WORLD, **FEW | {"timeout": timeout}))
    seconds = time.monotonic() - begin
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    usual = str(backend.options._timeout)
    return [*said, str(seconds), usual]


def absent(rank: int) -> list[str]:
    """Rank 1 does not make the first call, but the second."""
    said = ["", ""]
    if rank == 0:
        said = said_by(lambda: time_op(dist.barrier, group=dist.group.WORLD, timeout=4))
    dist.barrier()
    return [*said, *said_by(lambda: time_op(dist.barrier, group=dist.group.WORLD, **FEW))]


def without_store(rank: int) -> list[str]:
    """Rank 0, which holds the store, is killed before rank 1 connects to it."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.get("joined")  # or rank 1 could still be joining the group
        os.kill(os.getpid(), signal.SIGKILL)
    store.set("joined", "")
    port = store.underlying_store.port  # type: ignore[attr-defined]
    with suppress(ConnectionRefusedError):
        while True:
            socket.create_connection((HOST, port)).close()
            time.sleep(0.01)
    begin = time.monotonic()
    said = said_by(lambda: time_op(dist.barrier, group=dist.group.WORLD, timeout=1))
    return [*said, str(time.monotonic() - begin)]


CASES: dict[str, Callable[[], list[Any]]] = {
    "measures": partial(launch, 2, measures, seconds=150),
    "subgroup": partial(launch, 3, subgroup),
    "other clock": with_other_clock,
    "absent": partial(launch, 2, absent),
    "without store": partial(launch, 2, without_store, seconds=20),
    **{
        f"{kind} at {at}": partial(launch, 2, partial(faulty, kind=kind, at=at), seconds=20)
        for kind, at in (
            *(("raise", 1), ("raise both", 20), ("exit", 20)),
            *(("kill", 20), ("hang", 20)),
        )
    },
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, run in CASES.items():
        try:
            outcomes = [dataclasses.asdict(each) for each in run()]
        except OSError as error:  # a time namespace is not permitted
            outcomes = [{"error": "OSError", "text": str(error)}]
        print(json.dumps([name, outcomes]), flush=True)
