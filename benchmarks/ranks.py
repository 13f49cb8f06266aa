"""Ranks that measure together, on CPUs with Gloo: injected skew, all-reduce times, and faults.

Each row starts processes of one machine, which are forked from this one. For times, each is pinned
to a core, with the highest priority of ordinary processes, which takes root.

- "skew": rank 1 arrives at an all-reduce later than rank 0 by a known time, because both compute
  until an instant of the machine's clock. The error is that of the median arrival skew, relative to
  the injected one; 0 if it is at most twice the measured uncertainty of the clocks. In the rows
  with exchanged clocks, rank 1 has a monotonic clock of its own, 1,000 s ahead (a Linux time
  namespace), as on another machine.
- "all_reduce": the median transfer time of an all-reduce, against stamps that each rank takes in
  Python directly before and after the same calls of the process group's C++ function: from the last
  rank's stamp before to the last rank's stamp after.
- "faults": one of three ranks raises an exception, exits, hangs or is killed by SIGKILL at a random
  moment, in a call or before the first one. Every other rank must end its measurement within the
  timeout (a deadlock otherwise) and name the rank.

No row is of a GPU: NCCL is not measured here.
"""

from __future__ import annotations

import functools
import mmap
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import results
from common import running
from common.rank_processes import Appointments, Outcome, clock_ahead, launch

SKEWS_US = (50, 100, 200, 500, 1000)
SIZES = tuple(1 << power for power in range(10, 29, 3))  # 1 KB to 256 MB
FAULTS = ("raise", "exit", "hang", "kill")
RUNS = 30  # of each fault
RANKS = 3
TIMEOUT = 2.5  # seconds
DEADLOCK_SECONDS = 10.0
CLOCK_AHEAD_SECONDS = 1000
SPREAD_SECONDS = 0.8  # over which the moments of faults are spread


def of_skew(microseconds: int, *, exchanged: bool) -> results.Row:
    """The median skew of many calls in which rank 1 is late."""
    appointments = Appointments()

    def body(rank: int) -> list[float]:
        import torch
        import torch.distributed as dist

        from convtime import time_op

        ahead = CLOCK_AHEAD_SECONDS * 10**9 if exchanged and rank == 1 else 0
        late = appointments.late(rank, 1000 * microseconds, ahead)
        measured = time_op(
            late,
            torch.zeros(1000),
            group=dist.group.WORLD,
            stop="count",
            max_samples=1000,
            timeout=60,
        ).ranks
        assert measured is not None
        assert measured.skew is not None
        return [measured.skew, measured.clock_uncertainty]

    if exchanged:
        with clock_ahead(CLOCK_AHEAD_SECONDS) as before_fork:
            outcomes = launch(2, body, seconds=90, before_fork=before_fork, urgent=True)
    else:
        outcomes = launch(2, body, seconds=90, urgent=True)
    skew, uncertainty = _value(outcomes)
    difference = abs(skew - 1e-6 * microseconds)
    error = difference / (1e-6 * microseconds)
    return {
        "backend": "gloo",
        "clocks": "exchanged" if exchanged else "shared",
        "injected_us": microseconds,
        "recovered_us": 1e6 * skew,
        "uncertainty_us": 1e6 * uncertainty,
        "relative": error,
        "error": 0.0 if difference <= 2 * uncertainty else error,
    }


def of_all_reduce(nbytes: int) -> results.Row:
    """The median transfer time, and that of other stamps of the same calls."""

    def body(_: int) -> list[Any]:
        import torch
        import torch.distributed as dist

        from convtime import time_op

        x = torch.zeros(nbytes // 4)
        group: Any = dist.group.WORLD
        stamps: list[tuple[int, int]] = []

        def call() -> None:
            before = time.monotonic_ns()
            group.allreduce([x]).wait()
            stamps.append((before, time.monotonic_ns()))

        measured = time_op(
            call, group=group, stop="budget", budget=4.0, max_samples=1000, timeout=100
        )
        ranks = measured.ranks
        assert ranks is not None
        assert ranks.transfer is not None
        count = len(measured.seconds)
        return [ranks.transfer, ranks.bus_bandwidth, ranks.skew, stamps[-count:]]

    outcomes = launch(2, body, seconds=110, urgent=True)
    transfer, bus, skew, _ = _value(outcomes)
    calls = zip(*(outcome.value[-1] for outcome in outcomes), strict=True)
    stamped = statistics.median(
        1e-9 * (max(after for _, after in call) - max(before for before, _ in call))
        for call in calls
    )
    return {
        "backend": "gloo",
        "bytes": nbytes,
        "samples": len(outcomes[0].value[-1]),
        "transfer_us": 1e6 * transfer,
        "stamped_us": 1e6 * stamped,
        "skew_us": 1e6 * skew,
        "bus_gb_per_second": None if bus is None else bus / 1e9,
        "error": abs(transfer - stamped) / stamped,
    }


def of_faults(kind: str) -> results.Row:
    """How many runs ended on every rank, and named the rank that failed."""
    counts = {"runs": 0, "deadlocks": 0, "named": 0, "survivors": 0}
    slowest = 0.0
    for number in range(RUNS):
        rank = random.Random(f"{kind} {number}").randrange(RANKS)  # noqa: S311 - not for secrets
        outcomes = _run_with_fault(kind, rank, number)
        counts["runs"] += 1
        others = [each for other, each in enumerate(outcomes) if other != rank]
        counts["survivors"] += len(others)
        counts["deadlocks"] += any(each.status is None for each in outcomes)
        named = [each.text.startswith(f"rank {rank} ") for each in others]
        counts["named"] += sum(named)
        slowest = max(slowest, *(each.seconds for each in others))
        for each, found in zip(others, named, strict=True):
            if not found:
                print(f"{kind} {number}, rank {rank}: {each}", file=sys.stderr, flush=True)
    return {"backend": "gloo", "ranks": RANKS, **counts, "slowest_seconds": slowest}


def _run_with_fault(kind: str, faulty: int, number: int) -> list[Outcome]:
    entered = mmap.mmap(-1, RANKS)  # shared with the forked ranks
    moment = random.Random(f"{kind} at {number}").uniform(0, SPREAD_SECONDS)  # noqa: S311

    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist

        from convtime import time_op

        x = torch.zeros(1000)
        begin = time.monotonic()

        def call() -> None:
            if rank == faulty and kind != "kill" and time.monotonic() - begin >= moment:
                _fail(kind, number)
            dist.all_reduce(x)

        entered[rank] = 1
        time_op(
            call,
            group=dist.group.WORLD,
            stop="budget",
            budget=100,
            max_samples=10**9,
            timeout=TIMEOUT,
        )

    def kill(processes: list[int]) -> None:
        if kind == "kill":
            while entered[:] != b"\1" * RANKS:
                time.sleep(0.001)
            time.sleep(moment)
            os.kill(processes[faulty], signal.SIGKILL)

    return launch(RANKS, body, seconds=DEADLOCK_SECONDS, watch=kill)


def _fail(kind: str, number: int) -> None:
    if kind == "raise":
        raise ValueError("planted")
    if kind == "hang":
        time.sleep(1000)
    if number % 2:
        os._exit(1)
    sys.exit(1)


def _value(outcomes: list[Outcome]) -> Any:
    failed = [outcome.text for outcome in outcomes if outcome.value is None]
    if failed:
        raise RuntimeError(failed[0])
    return outcomes[0].value


CASES: dict[str, Callable[[], results.Row]] = {
    **{
        f"skew {skew} µs, {'exchanged clocks' if exchanged else 'one clock'}": functools.partial(
            of_skew, skew, exchanged=exchanged
        )
        for exchanged in (False, True)
        for skew in SKEWS_US
    },
    **{f"all_reduce {size} bytes": functools.partial(of_all_reduce, size) for size in SIZES},
    **{f"faults: {kind}": functools.partial(of_faults, kind) for kind in FAULTS},
}


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """The values of the goals, once all of their rows are there."""
    by_key = {row["key"]: row for row in rows}
    summary: dict[str, float] = {}
    for name, begins in (("skew_error", "skew"), ("all_reduce_error", "all_reduce")):
        keys = [key for key in CASES if key.startswith(begins)]
        if all(key in by_key for key in keys):
            summary[name] = max(by_key[key]["error"] for key in keys)
    faults = [key for key in CASES if key.startswith("faults")]
    if all(key in by_key for key in faults):
        runs, deadlocks, named, survivors = (
            sum(by_key[key][what] for key in faults)
            for what in ("runs", "deadlocks", "named", "survivors")
        )
        summary |= {"faults": runs, "deadlocks": deadlocks, "named": named / survivors}
    return summary


def table(rows: list[results.Row]) -> str:
    """Markdown, a line for each injected skew."""
    lines = [
        "| injected | clocks | recovered | uncertainty of the clocks | difference |",
        "|--:|---|--:|--:|--:|",
    ]
    lines += [
        f"| {row['injected_us']:,} µs | {row['clocks']} | {row['recovered_us']:,.1f} µs "
        f"| {row['uncertainty_us']:.1f} µs | {row['relative']:.1%} |"
        for row in rows
        if "injected_us" in row
    ]
    return "\n".join(lines)


def transfer_table(rows: list[results.Row]) -> str:
    """Markdown, a line for each size of an all-reduce."""
    lines = [
        "| bytes | transfer | other stamps | difference | arrival skew | bus bandwidth |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        if "bytes" in row:
            bus = row["bus_gb_per_second"]
            rate = "unknown" if bus is None else f"{bus:.3g} GB/s"
            lines.append(
                f"| {row['bytes']:,} | {row['transfer_us']:,.1f} µs | {row['stamped_us']:,.1f} µs "
                f"| {row['error']:.1%} | {row['skew_us']:,.1f} µs | {rate} |"
            )
    return "\n".join(lines)


def fault_table(rows: list[results.Row]) -> str:
    """Markdown, a line for each kind of fault."""
    lines = [
        "| fault | runs | deadlocks | other ranks that named it | slowest end |",
        "|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['key'].partition(': ')[2]} | {row['runs']} | {row['deadlocks']} "
        f"| {row['named']} of {row['survivors']} | {row['slowest_seconds']:.1f} s |"
        for row in rows
        if "survivors" in row
    ]
    return "\n".join(lines)


def main() -> None:
    options = results.argument_parser(__doc__).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of torch in the forked ranks
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # of connections that faults end

    # Loaded once, and not by each of hundreds of ranks.
    import torch

    import convtime.distributed.measure  # noqa: F401
    from convtime.core.provenance import provenance

    file = results.ResultFile("ranks", summarise, options, provenance(torch.device("cpu")))
    running.measure_pending(file, CASES)


if __name__ == "__main__":
    main()
