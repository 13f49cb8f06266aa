"""Whether a race chooses a fast candidate, the same one each time, and what that takes.

The problems are drawn: Triton kernels with their configurations, cuBLASLt's algorithms of a
product, ways to convolve, and alternatives in PyTorch. The oracle of a problem is the candidate
with the shortest median over one half of many interleaved samples; the other half gives each
candidate's regret, its time over the oracle's less 1. A flip is a winner of one process that is not
among the ties of another one. The peer is triton's do_bench on each candidate, in two of the
processes. Candidates were all called before, so that nothing is compiled while the seconds count.
Results are not compared, since the peer does not compare them.
"""

import statistics

import results
from common import summaries

ORACLE = "oracle"


def summarise(rows: list[results.Row]) -> dict[str, float]:
    oracles, processes = _oracles(rows), _processes(rows)
    if not (oracles and processes):
        return {"problems": len(oracles)}
    regrets = [each for name in oracles for each in regrets_of(rows, name, "race")]
    both = [each for problems in processes for each in problems.values() if "do_bench" in each]
    ours, theirs = (sum(each[how]["seconds"] for each in both) for how in ("race", "do_bench"))
    return summaries.known(
        problems=len(oracles),
        regret_mean=statistics.mean(regrets),
        regret_max=max(regrets),
        flips=summaries.share(each for name in oracles for each in flips_of(rows, name)),
        gpu_seconds_over_do_bench=ours / theirs if both else None,
    )


def _oracles(rows: list[results.Row]) -> dict[str, results.Row]:
    keys = ((row["key"].partition("/"), row) for row in rows)
    return {problem: row for (kind, _, problem), row in keys if kind == ORACLE}


def _processes(rows: list[results.Row]) -> list[results.Row]:
    """What each process chose, by problem."""
    return [row["problems"] for row in rows if "problems" in row]


def _choices(rows: list[results.Row], name: str, how: str) -> list[results.Row]:
    return [problems[name][how] for problems in _processes(rows) if how in problems[name]]


def regrets_of(rows: list[results.Row], name: str, how: str) -> list[float]:
    scores = _oracles(rows)[name]["regrets"]
    return [scores[choice["winner"]] for choice in _choices(rows, name, how)]


def flips_of(rows: list[results.Row], name: str) -> list[bool]:
    choices = _choices(rows, name, "race")
    return [*summaries.flips((choice["winner"], choice["ties"]) for choice in choices)]


def table(rows: list[results.Row]) -> str:
    lines = []
    for name, oracle in _oracles(rows).items():
        raced, peer = (_choices(rows, name, how) for how in ("race", "do_bench"))
        regrets, flips = regrets_of(rows, name, "race"), flips_of(rows, name)
        seconds, theirs = (
            statistics.median(each["seconds"] for each in found) for found in (raced, peer)
        )
        lines.append(
            {
                "name": name,
                "count": len(oracle["regrets"]),
                "fastest": oracle["seconds"],
                "near": sum(each <= 0.01 for each in oracle["regrets"].values()),
                "mean": statistics.mean(regrets),
                "worst": max(regrets),
                "ties": statistics.median(len(each["ties"]) for each in raced),
                "flips": f"{sum(flips)} of {len(flips)}",
                "seconds": seconds,
                "peer": max(regrets_of(rows, name, "do_bench")),
                "theirs": theirs,
            }
        )
    return summaries.filled(
        "problem | candidates: | fastest (µs): | within 1 %: | regret, mean: | worst: "
        "| ties, median: | flips: | seconds: | do_bench: regret, worst: | seconds:",
        "{name} | {count} | {fastest:.2fµ} | {near} | {mean:.2%} | {worst:.2%} | {ties:g} "
        "| {flips} | {seconds:.2f} | {peer:.2%} | {theirs:.2f}",
        lines,
    )
