"""The rows of race.py."""

import functools
import time

import results
import torch
from common import running, summaries
from race import ORACLE, PEER_PROCESSES, PROCESSES
from triton.testing import do_bench  # type: ignore[import-untyped]

from convtime import Candidate, race
from convtime.core.errors import first_line
from race_parts import problems

_ORACLE_SECONDS = 0.15  # per candidate


def _make(name: str, device: torch.device) -> dict[str, Candidate]:
    """The candidates that can be called, each called once."""
    made = problems.make(name, device)
    return {each: candidate for each, candidate in made.items() if _works(name, candidate)}


def _works(problem: str, candidate: Candidate) -> bool:
    try:
        candidate.fn(*candidate.args, **candidate.kwargs)
    except Exception as error:  # too much shared memory, or no such kernel
        print(f"{problem}, {candidate.name}: {first_line(error)}")
        return False
    return True


def _measure_oracle(device: torch.device, name: str) -> results.Row:
    made = _make(name, device)
    oracle, medians, rounds = summaries.find_oracle(made, _ORACLE_SECONDS, regime="as-is")
    return {
        "oracle": oracle,
        "seconds": medians[oracle],
        "rounds": rounds,
        "regrets": {each: seconds / medians[oracle] - 1 for each, seconds in medians.items()},
    }


def probe_race(device: torch.device, with_peer: str) -> results.Row:
    found = {}
    for name in problems.names():
        made = _make(name, device)
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        raced = race(made, check=None, progress=False)
        seconds = time.perf_counter() - begin
        told = {"winner": raced.winner, "ties": list(raced.ties), "seconds": seconds}
        found[name] = {"race": told}
        if with_peer == "peer":
            found[name]["do_bench"] = _choose_by_do_bench(made)
        del made, raced
        torch.cuda.empty_cache()
    return {"problems": found}


def _choose_by_do_bench(made: dict[str, Candidate]) -> results.Row:
    begin = time.perf_counter()
    times = {
        name: do_bench(functools.partial(each.fn, *each.args, **each.kwargs))
        for name, each in made.items()
    }
    seconds = time.perf_counter() - begin
    return {"winner": min(times, key=times.__getitem__), "seconds": seconds}


def probe_compile(device: torch.device, part: str) -> results.Row:
    """Compile a part of the kernels; run in parallel before everything else, it saves time."""
    first, step = map(int, part.split("/"))
    for name in problems.names()[first::step]:
        _make(name, device)
    return {}


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    cases: dict[str, running.Measure] = {
        f"{ORACLE}/{name}": functools.partial(_measure_oracle, device, name)
        for name in problems.names()
    }
    for number in range(1, PROCESSES + 1):
        peer = "peer" if number <= PEER_PROCESSES else "alone"
        cases[f"process {number}"] = functools.partial(
            running.run_probe, "race", "race", device, peer, timeout=240
        )
    return cases
