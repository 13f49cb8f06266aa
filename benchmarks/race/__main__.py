"""The rows: oracles, and processes that race."""

import functools
import time

import results
import torch
from common import running, summaries
from triton.testing import do_bench  # type: ignore[import-untyped]

import convtime
from convtime import Candidate
from convtime.core.errors import first_line
from race import ORACLE, problems

PROCESSES = 10
PEER_PROCESSES = 2
_ORACLE_SECONDS = 0.15  # per candidate


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    cases: dict[str, running.Measure] = {
        f"{ORACLE}/{name}": running.Case(
            functools.partial(_measure_oracle, device, name),
            functools.partial(_make, name, device),
        )
        for name in problems.names()
    }
    for count, peer in ((PROCESSES, "alone"), (PEER_PROCESSES, "peer")):
        cases |= running.in_processes(race_all, device, count, peer, timeout=240)
    return cases


def _make(name: str, device: torch.device) -> dict[str, Candidate]:
    """The candidates that can be called, each called once."""
    return {
        each: candidate
        for each, candidate in problems.make(name, device).items()
        if _works(name, candidate)
    }


def _works(problem: str, candidate: Candidate) -> bool:
    try:
        candidate.fn(*candidate.args, **candidate.kwargs)
    except Exception as error:  # too much shared memory, or no such kernel
        print(f"{problem}, {candidate.name}: {first_line(error)}")
        return False
    return True


def _measure_oracle(device: torch.device, name: str) -> results.Row:
    made = _make(name, device)
    oracle, medians = summaries.find_oracle(made, _ORACLE_SECONDS, regime="as-is")
    return {
        "oracle": oracle,
        "seconds": medians[oracle],
        "regrets": {each: seconds / medians[oracle] - 1 for each, seconds in medians.items()},
    }


def race_all(device: torch.device, with_peer: str) -> results.Row:
    found = {}
    for name in problems.names():
        made = _make(name, device)
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        raced = convtime.race(made, check=None, progress=False)
        seconds = time.perf_counter() - begin
        chosen = {"winner": raced.winner, "ties": list(raced.ties), "seconds": seconds}
        found[name] = {"race": chosen}
        if with_peer == "peer":
            begin = time.perf_counter()
            times = {
                each: do_bench(functools.partial(other.fn, *other.args, **other.kwargs))
                for each, other in made.items()
            }
            seconds = time.perf_counter() - begin
            winner = min(times, key=lambda each: times[each])
            found[name]["do_bench"] = {"winner": winner, "seconds": seconds}
        del made, raced
        torch.cuda.empty_cache()
    return {"problems": found}


if __name__ == "__main__":
    running.run("race", make_cases)
