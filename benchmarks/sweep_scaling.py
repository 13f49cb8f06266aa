"""Sweeps over several processes: their speed, and their points while processes are killed.

- "scaling": seconds that a sweep takes with one worker and with two, alternating, with processes
  that have started already. Workers have a GPU each, or where there are fewer than two, a CPU
  each; the row says which. "two_gpus" is the median of the ratios in either case.
- "kills": a sweep of 10,000 points over 8 workers on the CPUs while processes are killed (SIGKILL)
  after random numbers of points. The sweep's file tells which points are lost or recorded twice.
"""

import collections
import functools
import itertools
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import results
from common import running, summaries

POINTS_OF_SCALING, SECONDS_OF_A_POINT, ROUNDS = 60, 0.2, 3
SIDE = 100  # values of each of two axes
WORKERS, POINTS_BETWEEN_KILLS = 8, 250
SEED = 20


def make_cases(_: object) -> dict[str, running.Measure]:
    return {"scaling": of_scaling, "kills": of_kills}


def relu(row: int, column: int, device: str = "cpu") -> Callable[[], object]:
    import torch

    x = torch.ones(row + column, device=device)
    return lambda: torch.relu(x)


def of_scaling() -> results.Row:
    import torch

    import convtime
    from convtime.sweeps.local_pool import LocalPool, worker_resources

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.device_count() > 1 else "cpu"
    both = worker_resources(2, device)
    fn = functools.partial(relu, device=device)
    axes = {"row": range(1, 11), "column": range(1, POINTS_OF_SCALING // 10 + 1)}
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with LocalPool(both[:1]) as one, LocalPool(both) as two:
        pools = {1: one, 2: two}
        for pool in pools.values():
            convtime.sweep(fn, {"row": range(8), "column": [1]}, executor=pool, device=device)
        for _ in range(ROUNDS):
            for workers, pool in pools.items():
                begin = time.perf_counter()
                swept = convtime.sweep(
                    fn, axes, executor=pool, device=device, budget=SECONDS_OF_A_POINT,
                    max_samples=1_000_000, tolerance=0.0,
                )  # fmt: skip
                seconds[workers].append(time.perf_counter() - begin)
                names = {point.worker for point in swept.points}
                if len(names) != workers or swept.failed:
                    raise RuntimeError(f"{workers} workers must measure all points, got {names}")
    return {
        "workers": "GPUs" if device == "cuda" else "CPUs",
        "points": POINTS_OF_SCALING,
        "one_s": seconds[1],
        "two_s": seconds[2],
    }


def of_kills() -> results.Row:
    import torch

    import convtime
    from convtime.sweeps.local_pool import LocalPool, Resources

    torch.set_num_threads(1)
    cpus = sorted(os.sched_getaffinity(0))
    where = [Resources(frozenset({cpus[number % len(cpus)]})) for number in range(WORKERS)]
    axes = {"row": range(SIDE), "column": range(1, SIDE + 1)}
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, LocalPool(where) as pool:
        file = Path(folder, "sweep.jsonl")
        with killing(pool, file) as killed:
            swept = convtime.sweep(
                relu, axes, executor=pool, file=file, seed=SEED, device="cpu", warmup=1,
                stop="count", min_samples=3, max_samples=3,
            )  # fmt: skip
        seconds = time.perf_counter() - begin
        counts = collections.Counter(points_in(file))
    return {
        "points": SIDE * SIDE,
        "workers": WORKERS,
        "kills": len(killed),
        "lost": sum(place not in counts for place in itertools.product(*axes.values())),
        "twice": sum(count > 1 for count in counts.values()),
        "failed": len(swept.failed),
        "seconds": seconds,
    }


@contextmanager
def killing(pool: Any, file: Path) -> Iterator[list[int]]:
    """Kills random workers as a sweep's file grows; yields the process IDs of those killed."""
    chance = random.Random(SEED)  # noqa: S311 (no secret)
    killed: list[int] = []

    def kill(is_done: threading.Event) -> None:
        file.touch()  # which the sweep begins
        with file.open(encoding="utf-8") as lines:
            left = 0.0  # lines until the next kill
            while not is_done.wait(0.01):
                left -= len(lines.readlines())
                if left < 0:
                    left = chance.expovariate(1 / POINTS_BETWEEN_KILLS)
                    killed.append(chance.choice(pool.pids))
                    os.kill(killed[-1], signal.SIGKILL)

    with running.beside(kill):
        yield killed


def points_in(file: Path) -> Iterator[tuple[int, int]]:
    _plan, *lines = file.read_text(encoding="utf-8").splitlines()
    for visit in map(json.loads, lines):
        if not visit["control"]:
            yield visit["values"]["row"], visit["values"]["column"]


def summarise(rows: list[results.Row]) -> dict[str, float]:
    by_key = summaries.by_key(rows)
    summary: dict[str, float] = {}
    if row := by_key.get("scaling"):
        summary["two_gpus"] = summaries.median_ratio(row["one_s"], row["two_s"])
    if row := by_key.get("kills"):
        summary |= {"points_lost": row["lost"] + row["failed"], "points_twice": row["twice"]}
    return summary


def table(rows: list[results.Row]) -> str:
    lines = []
    for row in rows:
        if row["key"] == "scaling":
            one, two = (statistics.median(row[name]) for name in ("one_s", "two_s"))
            what = f"one worker, then two ({row['workers']})"
            lines.append((what, 2, row["points"], f"{one:.1f} s, then {two:.1f} s"))
        else:
            lost = f"{row['lost']} lost, {row['twice']} twice, {row['failed']} failed"
            what = f"{row['kills']} processes are killed"
            lines.append((what, row["workers"], f"{row['points']:,}", lost))
    return summaries.markdown("sweep | workers: | points: | result", lines)


if __name__ == "__main__":
    running.run("sweep_scaling", make_cases, on="any")
