"""Ranks that measure together: injected skew, all-reduce times, and faults.

On CPUs with Gloo, and with NCCL where there are two GPUs; shards on one machine take turns at them.
Each row starts processes of one machine, which are forked from this one. For times, each is pinned
to a core, with the highest priority of ordinary processes, which takes root.

- "skew": rank 1 arrives at an all-reduce later than rank 0 by a known time: by an instant of the
  machine's clock until which it computes, or by a kernel of known duration. The error is that of
  the median arrival skew, relative to the injected one; 0 if it is at most twice the measured
  uncertainty of the clocks.
- "all_reduce": the median transfer time, against stamps directly around the same calls. With Gloo
  from the last rank's stamp before to the last one after. With NCCL the stamps are of the GPU's own
  clock, less the gaps of stamps around a kernel that is timed alone, and the shortest of all ranks:
  the one that comes last does not wait. A column has that of calls back to back, without convtime.
- "faults": one of the ranks raises an exception, exits, hangs or is killed by SIGKILL at a random
  moment. Every other rank must end its measurement within the timeout (a deadlock otherwise) and
  name the rank.
"""

import fcntl
import functools
import mmap
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import results
from common import running, summaries
from common.rank_processes import Appointments, Outcome, launch

SKEWS_US = (50, 100, 200, 500, 1000)
SIZES = tuple(1 << power for power in range(10, 29, 3))  # 1 KB to 256 MB
FAULTS = ("raise", "exit", "hang", "kill")
TIMEOUTS = {"gloo": 2.5, "nccl": 5.0}  # seconds
DEADLOCK_SECONDS = {"gloo": 10.0, "nccl": 20.0}
SPREAD_SECONDS = 0.8  # over which the moments of faults are spread
SIZES_ON_GPUS = tuple(1 << power for power in range(10, 31, 4))  # 1 KB to 1 GB
STARTED_WITHIN = 60.0  # seconds
CALLS = 500  # that are stamped, at most
CHUNKS, CALLS_OF_CHUNK = 5, 30  # back to back
SPIN_NS = 20_000


def _loaded() -> tuple[Any, Any, Any]:
    import torch
    import torch.distributed as dist

    from convtime import time_op

    return torch, dist, time_op


def _launch(
    backend: str, body: Callable[[int], Any], size: int = 2, **options: Any
) -> list[Outcome]:
    """Ranks with NCCL have the GPUs alone, among the shards of this benchmark."""
    if backend == "gloo":
        return launch(size, body, **options)
    with Path(tempfile.gettempdir(), "convtime-ranks.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return launch(size, body, backend=backend, **options)


def _value(outcomes: list[Outcome]) -> Any:
    for outcome in outcomes:
        if outcome.value is None:
            raise RuntimeError(outcome.text)
    return outcomes[0].value


def of_skew(microseconds: int, backend: str) -> results.Row:
    appointments = Appointments()

    def body(rank: int) -> list[float]:
        torch, dist, time_op = _loaded()
        options = {"group": dist.group.WORLD, "stop": "count", "timeout": 60}
        if backend == "gloo":
            late = appointments.late(rank, 1000 * microseconds)
            measured = time_op(late, torch.zeros(1000), max_samples=1000, **options)
        else:
            x = torch.zeros(1000, device="cuda")

            def late_on_gpu() -> None:
                if rank == 1:
                    torch.ops.convtime.spin_ns(1000 * microseconds)
                dist.all_reduce(x)

            measured = time_op(late_on_gpu, cache="warm", max_samples=200, **options)
        return [measured.ranks.skew, measured.ranks.clock_uncertainty]

    outcomes = _launch(backend, body, seconds=90, urgent=backend == "gloo")
    skew, uncertainty = _value(outcomes)
    difference = abs(skew - 1e-6 * microseconds)
    error = difference / (1e-6 * microseconds)
    return {
        "backend": backend,
        "clocks": "shared",
        "injected_us": microseconds,
        "recovered_us": 1e6 * skew,
        "uncertainty_us": 1e6 * uncertainty,
        "relative": error,
        "error": 0.0 if difference <= 2 * uncertainty else error,
    }


def of_all_reduce(nbytes: int) -> results.Row:
    def body(_: int) -> list[Any]:
        torch, dist, time_op = _loaded()
        x = torch.zeros(nbytes // 4)
        group = dist.group.WORLD
        stamps: list[tuple[int, int]] = []

        def call() -> None:
            before = time.monotonic_ns()
            group.allreduce([x]).wait()
            stamps.append((before, time.monotonic_ns()))

        measured = time_op(
            call, group=group, stop="budget", budget=4.0, max_samples=1000, timeout=100
        )
        return [_transfer_of(measured), stamps[-len(measured.seconds) :]]

    def between(call: Sequence[tuple[int, int]]) -> float:
        return max(after for _, after in call) - max(before for before, _ in call)

    outcomes = _launch("gloo", body, seconds=110, urgent=True)
    return {"backend": "gloo", "bytes": nbytes} | _compared(outcomes, between)


def _transfer_of(measured: Any) -> list[float | None]:
    ranks = measured.ranks
    return [ranks.transfer, ranks.bus_bandwidth, ranks.skew]


def _compared(outcomes: list[Outcome], stamped_ns: Callable[[Any], float]) -> results.Row:
    """The transfer time, and that by the ranks' stamps of each call."""
    (transfer, bus, skew), stamps, *_ = _value(outcomes)
    calls = zip(*(outcome.value[1] for outcome in outcomes), strict=True)
    stamped = 1e-9 * statistics.median(map(stamped_ns, calls))
    return {
        "samples": len(stamps),
        "transfer_us": 1e6 * transfer,
        "stamped_us": 1e6 * stamped,
        "skew_us": 1e6 * skew,
        "bus_gb_per_second": None if bus is None else bus / 1e9,
        "error": abs(transfer - stamped) / stamped,
    }


def of_all_reduce_on_gpus(nbytes: int) -> results.Row:
    def body(_: int) -> list[Any]:
        torch, dist, time_op = _loaded()
        x = torch.zeros(nbytes // 4, device="cuda")
        calls = Stamped(functools.partial(dist.all_reduce, x))
        spins = Stamped(functools.partial(torch.ops.convtime.spin_ns, SPIN_NS))
        group = dist.group.WORLD
        measured = time_op(calls, group=group, cache="warm", max_samples=CALLS, timeout=60)
        known = time_op(spins, max_samples=CALLS, cache="warm")
        (recorded,) = (each.median for each in known.activities if "spin" in each.name)
        gaps = statistics.median(spins.last(len(known.seconds))) - 1e9 * recorded
        stamps = [each - gaps for each in calls.last(len(measured.seconds))]
        gaps = statistics.median(spins.back_to_back()) - 1e9 * recorded
        back_to_back = [each - gaps for each in calls.back_to_back()]
        return [_transfer_of(measured), stamps, back_to_back]

    outcomes = _launch("nccl", body, seconds=110)
    row = {"backend": "nccl", "bytes": nbytes} | _compared(outcomes, min)
    back_to_back = map(min, *(outcome.value[2] for outcome in outcomes))
    return row | {"back_to_back_us": 1e-3 * statistics.median(back_to_back)}


class Stamped:
    """A call between two stamps of the GPU's clock."""

    def __init__(self, call: Callable[[], object]) -> None:
        torch, *_ = _loaded()
        self._call = call
        self._stamp: Callable[[], Any] = torch.ops.convtime.read_clocks
        self._stamps: deque[Any] = deque(maxlen=CALLS)
        for _ in range(CALLS):  # so that no memory is asked for while a queue is held
            self._stamps.append((self._stamp(), self._stamp()))
        self._stamps.clear()

    def __call__(self) -> None:
        before = self._stamp()
        self._call()
        self._stamps.append((before, self._stamp()))

    def last(self, count: int) -> list[int]:
        return [int(after[0] - before[0]) for before, after in list(self._stamps)[-count:]]

    def back_to_back(self) -> list[int]:
        torch, *_ = _loaded()
        for _ in range(CHUNKS):
            torch.ops.convtime.spin_ns(20_000_000)  # until all calls are issued
            for _ in range(CALLS_OF_CHUNK):
                self()
            torch.cuda.synchronize()
        return self.last(CHUNKS * CALLS_OF_CHUNK)


def of_faults(kind: str, backend: str, ranks: int, runs: int) -> results.Row:
    counts = {"runs": runs, "deadlocks": 0, "named": 0, "survivors": 0}
    slowest = 0.0
    for number in range(runs):
        rank = random.Random(f"{kind} {number}").randrange(ranks)  # noqa: S311 - not for secrets
        outcomes = _run_with_fault(kind, rank, number, backend, ranks)
        counts["deadlocks"] += any(each.seconds is None for each in outcomes)
        for each in (each for other, each in enumerate(outcomes) if other != rank):
            named = each.text.startswith(f"rank {rank} ")
            counts["survivors"] += 1
            counts["named"] += named
            slowest = max(slowest, each.seconds or 0)
            if not named:
                print(f"{kind} {number}, rank {rank}: {each}", file=sys.stderr, flush=True)
    return {"backend": backend, "ranks": ranks, **counts, "slowest_seconds": slowest}


def _run_with_fault(kind: str, faulty: int, number: int, backend: str, ranks: int) -> list[Outcome]:
    entered = mmap.mmap(-1, ranks)  # shared with the forked ranks
    moment = random.Random(f"{kind} at {number}").uniform(0, SPREAD_SECONDS)  # noqa: S311

    def body(rank: int) -> None:
        torch, dist, time_op = _loaded()
        x = torch.zeros(1000, device="cuda" if backend == "nccl" else "cpu")
        begin = time.monotonic()

        def call() -> None:
            if rank == faulty and kind != "kill" and time.monotonic() - begin >= moment:
                _fail(kind, number)
            dist.all_reduce(x)

        entered[rank] = 1
        limits = {"budget": 100, "max_samples": 10**9, "timeout": TIMEOUTS[backend]}
        time_op(call, group=dist.group.WORLD, stop="budget", **limits)

    def watch(processes: list[int]) -> None:
        end = time.monotonic() + STARTED_WITHIN
        while entered[:] != b"\1" * ranks and time.monotonic() < end:
            time.sleep(0.001)
        if kind == "kill":
            time.sleep(moment)
            os.kill(processes[faulty], signal.SIGKILL)

    return _launch(backend, body, ranks, seconds=DEADLOCK_SECONDS[backend], watch=watch)


def _fail(kind: str, number: int) -> None:
    if kind == "raise":
        raise ValueError("planted")
    if kind == "hang":
        time.sleep(1000)
    if number % 2:
        os._exit(1)
    sys.exit(1)


def _of_each(
    key: str, values: Sequence[Any], measure: Callable[..., results.Row], **options: Any
) -> dict[str, running.Measure]:
    return {key.format(each): functools.partial(measure, each, **options) for each in values}


CASES: dict[str, running.Measure] = {
    **_of_each("skew {} µs, one clock", SKEWS_US, of_skew, backend="gloo"),
    **_of_each("all_reduce {} bytes", SIZES, of_all_reduce),
    **_of_each("faults: {}", FAULTS, of_faults, backend="gloo", ranks=3, runs=30),
}
ON_GPUS: dict[str, running.Measure] = {
    **_of_each("skew {} µs, NCCL", SKEWS_US, of_skew, backend="nccl"),
    **_of_each("all_reduce {} bytes, NCCL", SIZES_ON_GPUS, of_all_reduce_on_gpus),
    **_of_each("faults, NCCL: {}", FAULTS, of_faults, backend="nccl", ranks=2, runs=4),
}


def summarise(rows: list[results.Row]) -> dict[str, float]:
    by_key = summaries.by_key(rows)
    cases = {**CASES, **(ON_GPUS if by_key.keys() & ON_GPUS else {})}
    skews, all_reduces, faults = (
        [key for key in cases if key.startswith(kind)] for kind in ("skew", "all_reduce", "faults")
    )
    # A planted skew is exact on GPUs only: Python takes microseconds to come to Gloo's all-reduce.
    skews = [key for key in skews if key in ON_GPUS] or skews
    summary: dict[str, float] = {}
    for name, keys in (("skew_error", skews), ("all_reduce_error", all_reduces)):
        if all(key in by_key for key in keys):
            summary[name] = max(by_key[key]["error"] for key in keys)
    if all(key in by_key for key in faults):
        runs, deadlocks, named, survivors = (
            sum(by_key[key][what] for key in faults)
            for what in ("runs", "deadlocks", "named", "survivors")
        )
        summary |= {"faults": runs, "deadlocks": deadlocks, "named": named / survivors}
    return summary


def table(rows: list[results.Row]) -> str:
    return summaries.filled(
        "injected: | backend | clocks | recovered: | uncertainty of the clocks: | difference:",
        "{injected_us:,} µs | {backend} | {clocks} | {recovered_us:,.1f} µs "
        "| {uncertainty_us:.1f} µs | {relative:.1%}",
        (
            row if row["uncertainty_us"] else row | {"clocks": "not needed"}
            for row in rows
            if "injected_us" in row
        ),
    )


def transfer_table(rows: list[results.Row]) -> str:
    lines = []
    for row in rows:
        if "bytes" in row:
            bus = row["bus_gb_per_second"]
            bandwidth = "unknown" if bus is None else f"{bus:.3g} GB/s"
            queued = row.get("back_to_back_us")  # of GPUs
            again = "–" if queued is None else f"{queued:,.1f} µs"
            lines.append(row | {"bus": bandwidth, "back_to_back": again})
    return summaries.filled(
        "backend | bytes: | transfer: | other stamps: | difference: | arrival skew: "
        "| bus bandwidth: | back to back:",
        "{backend} | {bytes:,} | {transfer_us:,.1f} µs | {stamped_us:,.1f} µs | {error:.1%} "
        "| {skew_us:,.1f} µs | {bus} | {back_to_back}",
        lines,
    )


def fault_table(rows: list[results.Row]) -> str:
    return summaries.filled(
        "backend | fault | runs: | deadlocks: | other ranks that named it: | slowest end:",
        "{backend} | {fault} | {runs} | {deadlocks} | {named} of {survivors} "
        "| {slowest_seconds:.1f} s",
        (row | {"fault": row["key"].partition(": ")[2]} for row in rows if "survivors" in row),
    )


def main() -> None:
    options = results.argument_parser(__doc__).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of torch in the forked ranks
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # of connections that faults end

    # Loaded once, and not by each of hundreds of ranks.
    import torch

    import convtime.distributed.measure  # noqa: F401
    from convtime.device.provenance import provenance

    # This process must not use CUDA, or those that it forks could not.
    with_gpus = torch.cuda.device_count() > 1
    device = torch.device("cuda:0" if with_gpus else "cpu")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        facts = other.submit(provenance, device).result()
    file = results.ResultFile("ranks", options, facts)
    # The time of GPUs is what is scarce.
    running.measure_pending(file, {**(ON_GPUS if with_gpus else {}), **CASES})


if __name__ == "__main__":
    main()
