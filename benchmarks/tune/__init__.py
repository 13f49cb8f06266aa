"""What convtime.conv.tune gains, whether it chooses well, and whether it chooses the same again.

The problems are DeepBench's shapes and those of six networks, in float16 with channels last and in
float32, all three passes, in an order that a fixed seed draws. The peer is PyTorch with
torch.backends.cudnn.benchmark on from its first call of the problem, timed interleaved.

- "end to end": networks by convtime.nn.replace with plans, over PyTorch with benchmark on.
- "process": a fresh process chooses for some of the problems. A flip is a choice of one process
  that is not among the ties of another one.
- "replay": choices are written to a file. This process and a fresh one run them from it: engines
  and, where the bits of a plan repeat, bits have to be the same. Also the time of loading.
- "oracle": all candidates whose error is within the tolerance, interleaved: the oracle has the
  shortest median over one half of the rounds; the other half gives each candidate's time over the
  oracle's less 1, and so the regret of what a search within its budget had chosen.
- "problem": the speedup of the choice, with its interval, and the seconds of the search.
"""

import itertools
import statistics
from collections import defaultdict

import results
from common import summaries

_KINDS = ("end to end", "process", "replay", "oracle", "problem")


def summarise(rows: list[results.Row]) -> dict[str, float]:
    kinds = {kind: [row for row in rows if row["key"].startswith(kind)] for kind in _KINDS}
    problems = kinds["problem"]
    summary: dict[str, float] = {"problems": len(problems)}
    if problems:
        summary["wholly_over_1pct_slower"] = sum(row["high"] < 1 / 1.01 for row in problems)
        summary["geomean_speedup"] = statistics.geometric_mean(row["speedup"] for row in problems)
        summary["gpu_s_per_problem"] = statistics.mean(row["seconds"] for row in problems)
    if kinds["oracle"]:
        regrets = [row["regret"] for row in kinds["oracle"]]
        summary["regret_mean"] = statistics.mean(regrets)
        summary["geomean_over_oracle"] = statistics.geometric_mean(
            1 / (1 + each) for each in regrets
        )
    choices = defaultdict(list)
    for row in kinds["process"]:
        for name, found in row["problems"].items():
            choices[name].append((found["choice"], found["ties"]))
    flips = itertools.chain.from_iterable(map(summaries.flips, choices.values()))
    summary |= summaries.known(flips=summaries.share(flips))
    for row in kinds["replay"]:
        summary["replay_tags"] = row["same_tags"] / row["plans"]
        summary["replay_bits_where_repeatable"] = row["same_bits"] / max(row["repeatable"], 1)
        summary["load_choice_ms"] = 1e3 * row["load_seconds"] / row["plans"]
    if kinds["end to end"]:
        summary["end_to_end_worst"] = min(row["speedup"] for row in kinds["end to end"])
        summary["end_to_end_best"] = max(row["speedup"] for row in kinds["end to end"])
    return summary


def table(rows: list[results.Row]) -> str:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["key"].startswith("problem"):
            groups[f"{row['pass']}, {row['dtype']}"].append(row["speedup"])
    lines = []
    for name, found in sorted(groups.items()):
        spread = (f"{value:.2f}" for value in (min(found), statistics.median(found), max(found)))
        lines.append((name, len(found), *spread, f"{statistics.geometric_mean(found):.3f}"))
    header = "pass | problems: | worst: | median: | best: | geometric mean:"
    return summaries.markdown(header, lines)
