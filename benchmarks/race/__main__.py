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
    oracle, medians = summaries.find_oracle(made, _ORACLE_SECONDS, regime="as-is")
    return {
        "oracle": oracle,
        "seconds": medians[oracle],
        "regrets": {each: seconds / medians[oracle] - 1 for each, seconds in medians.items()},
    }


def probe_race(device: torch.device, with_peer: str) -> results.Row:
    found = {}
    for name in problems.names():
        made = _make(name, device)
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        raced = convtime.race(made, check=None, progress=False)
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


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    cases: dict[str, running.Measure] = {
        f"{ORACLE}/{name}": running.Case(
            functools.partial(_measure_oracle, device, name),
            functools.partial(_make, name, device),
        )
        for name in problems.names()
    }
    for count, peer in ((PROCESSES, "alone"), (PEER_PROCESSES, "peer")):
        cases |= running.in_processes(probe_race, device, count, peer, timeout=240)
    return cases


if __name__ == "__main__":
    running.run("race", make_cases)
