"""Whether a race chooses a fast candidate, the same one each time, and what that takes.

The problems are drawn: Triton kernels with their configurations, cuBLASLt's algorithms of a
product, ways to convolve, and alternatives in PyTorch. The oracle of a problem is the candidate
with the shortest median over one half of many interleaved samples; the other half gives each
candidate's regret, its time over the oracle's less 1. A flip is a winner of one process that is not
among the ties of another one. The peer is triton's do_bench on each candidate, in two of the
processes. Candidates were all called before, so that nothing is compiled while the seconds count.
Results are not compared, since the peer does not compare them.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import results
from common import running, summaries
from common.running import Measure
from common.summaries import medians_of_halves

if TYPE_CHECKING:
    import torch

    from convtime import Candidate

PROCESSES = 10
PEER_PROCESSES = 2
ORACLE = "oracle"
_ORACLE_SECONDS = 0.15  # per candidate
_LONGEST_ORACLE_SECONDS = 3.0


def summarise(rows: list[results.Row]) -> dict[str, float]:
    oracles = _oracles(rows)
    raced = [row["problems"] for row in rows if not row["key"].startswith(ORACLE)]
    if not (oracles and raced):
        return {"problems": len(oracles)}
    regrets, peers = (
        [each for name in oracles for each in regrets_of(rows, name, how)]
        for how in ("race", "do_bench")
    )
    both = [each for row in raced for each in row.values() if "do_bench" in each]
    ours, theirs = (sum(each[how]["seconds"] for each in both) for how in ("race", "do_bench"))
    return summaries.known(
        problems=len(oracles),
        regret_mean=statistics.mean(regrets),
        regret_max=max(regrets),
        flips=summaries.share(each for name in oracles for each in flips_of(rows, name)),
        do_bench_regret_mean=statistics.mean(peers) if peers else None,
        do_bench_regret_max=summaries.most(peers),
        gpu_seconds_over_do_bench=ours / theirs if peers else None,
    )


def _oracles(rows: list[results.Row]) -> dict[str, results.Row]:
    prefix = f"{ORACLE}/"
    return {row["key"].removeprefix(prefix): row for row in rows if row["key"].startswith(prefix)}


def _choices(rows: list[results.Row], name: str, how: str) -> list[results.Row]:
    return [
        row["problems"][name][how]
        for row in rows
        if not row["key"].startswith(ORACLE) and how in row["problems"][name]
    ]


def regrets_of(rows: list[results.Row], name: str, how: str) -> list[float]:
    scores = _oracles(rows)[name]["regrets"]
    return [scores[choice["winner"]] for choice in _choices(rows, name, how)]


def flips_of(rows: list[results.Row], name: str) -> Iterator[bool]:
    """For each pair of processes, whether one's winner is not among the other's ties."""
    for one, other in itertools.permutations(_choices(rows, name, "race"), 2):
        yield one["winner"] not in other["ties"]


def table(rows: list[results.Row]) -> str:
    lines = []
    for name, oracle in _oracles(rows).items():
        raced, peer = (_choices(rows, name, how) for how in ("race", "do_bench"))
        if not (raced and peer):
            continue
        regrets = regrets_of(rows, name, "race")
        flips = [*flips_of(rows, name)]
        seconds = [
            f"{statistics.median(each['seconds'] for each in found):.2f}" for found in (raced, peer)
        ]
        lines.append(
            (
                name,
                len(oracle["regrets"]),
                f"{1e6 * oracle['seconds']:.2f}",
                sum(each <= 0.01 for each in oracle["regrets"].values()),
                f"{statistics.mean(regrets):.2%}",
                f"{max(regrets):.2%}",
                f"{statistics.median(len(each['ties']) for each in raced):g}",
                f"{sum(flips)} of {len(flips)}",
                seconds[0],
                f"{max(regrets_of(rows, name, 'do_bench')):.2%}",
                seconds[1],
            )
        )
    return summaries.markdown(
        "problem | candidates: | fastest (µs): | within 1 %: | regret, mean: | worst: "
        "| ties, median: | flips: | seconds: | do_bench: regret, worst: | seconds:",
        lines,
    )


def _make(name: str, device: torch.device) -> dict[str, Candidate]:
    """The candidates that can be called, each called once."""
    from race_parts import problems

    made = problems.make(name, device)
    return {each: candidate for each, candidate in made.items() if _works(name, candidate)}


def _works(problem: str, candidate: Candidate) -> bool:
    from convtime.core.errors import first_line

    try:
        candidate.fn(*candidate.args, **candidate.kwargs)
    except Exception as error:  # too much shared memory, or no such kernel
        print(f"{problem}, {candidate.name}: {first_line(error)}")
        return False
    return True


def _measure_oracle(device: torch.device, name: str) -> results.Row:
    from convtime import compare

    made = _make(name, device)
    compared = compare(
        made,
        check=None,
        interference=False,
        stop="budget",
        regime="as-is",
        budget=min(_ORACLE_SECONDS * len(made), _LONGEST_ORACLE_SECONDS),
    )
    halves = medians_of_halves(compared)
    oracle = min(halves[0], key=lambda each: halves[0][each])
    scores = halves[1]
    return {
        "oracle": oracle,
        "seconds": scores[oracle],
        "rounds": len(next(iter(compared.measurements.values())).seconds),
        "regrets": {each: seconds / scores[oracle] - 1 for each, seconds in scores.items()},
    }


def _probe_race(device: torch.device, with_peer: str) -> results.Row:
    import torch
    from race_parts import problems

    from convtime import race

    found = {}
    for name in problems.names():
        made = _make(name, device)
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        raced = race(made, check=None, progress=False)
        seconds = time.perf_counter() - begin
        found[name] = {
            "race": {"winner": raced.winner, "ties": list(raced.ties), "seconds": seconds}
        }
        if with_peer == "peer":
            found[name]["do_bench"] = _choose_by_do_bench(made)
        del made, raced
        torch.cuda.empty_cache()
    return {"problems": found}


def _choose_by_do_bench(made: dict[str, Candidate]) -> results.Row:
    from triton.testing import do_bench  # type: ignore[import-untyped]

    begin = time.perf_counter()
    times = {
        name: do_bench(functools.partial(each.fn, *each.args, **each.kwargs))
        for name, each in made.items()
    }
    seconds = time.perf_counter() - begin
    return {"winner": min(times, key=lambda name: times[name]), "seconds": seconds}


def _probe_compile(device: torch.device, part: str) -> results.Row:
    """Compile a part of the kernels; run in parallel before everything else, it saves time."""
    from race_parts import problems

    first, step = map(int, part.split("/"))
    for name in problems.names()[first::step]:
        _make(name, device)
    return {}


def _make_cases(device: torch.device) -> dict[str, Measure]:
    from race_parts import problems

    cases: dict[str, Measure] = {
        f"{ORACLE}/{name}": functools.partial(_measure_oracle, device, name)
        for name in problems.names()
    }
    for number in range(1, PROCESSES + 1):
        peer = "peer" if number <= PEER_PROCESSES else "alone"
        cases[f"process {number}"] = functools.partial(
            running.run_probe, "race", "race", device, peer, timeout=240
        )
    return cases


if __name__ == "__main__":
    running.run_on_gpu(
        "race",
        __doc__,
        summarise,
        _make_cases,
        probes={"race": _probe_race, "compile": _probe_compile},
    )
