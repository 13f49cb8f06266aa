"""What convtime.tune gains, whether it chooses well, and whether it chooses the same again.

The problems are DeepBench's shapes and those of six networks, in float16 with channels last and in
float32, all three passes, in an order that a fixed seed draws. The peer is PyTorch with
torch.backends.cudnn.benchmark on from its first call of the problem, timed interleaved.

- "end to end": networks by convtime.nn.replace with plans, over PyTorch with benchmark on.
- "process": a fresh process chooses for some of the problems. A flip is a choice of one process
  that is not among the ties of another one.
- "replay": choices are written to a file. This process and a fresh one run them from it: engines
  and, where the bits of a plan repeat, bits have to be the same. Also the time of loading. A
  problem whose search fails has no plan, and is counted.
- "oracle": all candidates whose error is within the tolerance, interleaved: those that cuDNN lists,
  built without a limit of time, and the settings that the search has tried. The oracle has the
  shortest median over one half of the rounds; the other half gives each candidate's time over the
  oracle's less 1, and so the regret of what a search within its budget had chosen.
- "problem": the speedup of the choice, with its interval, and the seconds of the search. PyTorch's
  first call, which searches too, is not part of these, but of "whole_seconds".

The rows that take longest come first, so that each shard has about the same share of them.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import results
from common import running, summaries
from common.running import Measure
from common.summaries import medians_of_halves

if TYPE_CHECKING:
    import torch

    from convtime.conv.tuned.search import Search
    from convtime.conv.tuned.subjects import Subject
    from convtime.tuning.plan_set import Choice, Plans, StoredPlan

SEED = 0
PROBLEMS = 100
ORACLES = 12
FLIP_PROBLEMS = 12
PROCESSES = 4
REPLAYED = 16
NETWORKS = ("ResNet-50", "MobileNetV2")
STEPS = ((32, True), (1, False))  # batch, whether it is training
BUDGET = 1.2
_ORACLE_SECONDS = 0.1  # per candidate
_LONGEST_ORACLE_SECONDS = 3.0
_NEAR = 1.2  # candidates that are slower than this in the race are not the oracle
_KINDS = ("end to end", "process", "replay", "oracle", "problem")


def summarise(rows: list[results.Row]) -> dict[str, float]:
    kinds = {kind: [row for row in rows if row["key"].startswith(kind)] for kind in _KINDS}
    problems = kinds["problem"]
    summary: dict[str, float] = {"problems": len(problems)}
    if problems:
        summary["wholly_over_1pct_slower"] = sum(row["high"] < 1 / 1.01 for row in problems)
        summary["geomean_speedup"] = _geomean(row["speedup"] for row in problems)
        summary["gpu_s_per_problem"] = statistics.mean(row["seconds"] for row in problems)
    if kinds["oracle"]:
        regrets = [row["regret"] for row in kinds["oracle"]]
        summary["regret_mean"] = statistics.mean(regrets)
        summary["regret_max"] = max(regrets)
        summary["geomean_over_oracle"] = _geomean(1 / (1 + each) for each in regrets)
    flips = [*_flips(kinds["process"])]
    if flips:
        summary["flips"] = sum(flips) / len(flips)
    for row in kinds["replay"]:
        summary["replay_tags"] = row["same_tags"] / row["plans"]
        summary["replay_bits_where_repeatable"] = row["same_bits"] / max(row["repeatable"], 1)
        summary["load_choice_ms"] = 1e3 * row["load_seconds"] / row["plans"]
    if kinds["end to end"]:
        summary["end_to_end_worst"] = min(row["speedup"] for row in kinds["end to end"])
        summary["end_to_end_best"] = max(row["speedup"] for row in kinds["end to end"])
    return summary


def _geomean(values: Any) -> float:
    return math.exp(statistics.mean(math.log(value) for value in values))


def _flips(rows: list[results.Row]) -> Iterator[bool]:
    """For each pair of processes and problem, whether one's choice is not among the other's."""
    for one, other in itertools.permutations(rows, 2):
        for name, chosen in one["problems"].items():
            yield chosen["choice"] not in other["problems"][name]["ties"]


def table(rows: list[results.Row]) -> str:
    """Markdown: the distribution of speedups, by pass and dtype."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row["key"].startswith("problem"):
            groups.setdefault(f"{row['pass']}, {row['dtype']}", []).append(row["speedup"])
    lines = []
    for name, found in sorted(groups.items()):
        spread = (f"{value:.2f}" for value in (min(found), statistics.median(found), max(found)))
        lines.append((name, len(found), *spread, f"{_geomean(found):.3f}"))
    header = "pass | problems: | worst: | median: | best: | geometric mean:"
    return summaries.markdown(header, lines)


def _subjects(seed: int) -> dict[str, Subject]:
    import dataclasses

    import conv_problems

    from convtime.conv.call import PASSES
    from convtime.conv.flags import Flags
    from convtime.conv.problem import distinct
    from convtime.conv.sources.csv_file import from_csv
    from convtime.conv.tuned.subjects import Subject

    layers = {f"deepbench {each.name}": each for each in from_csv(conv_problems.DEEPBENCH)}
    for network, make in conv_problems.NETWORKS.items():
        layers |= {f"{network} {each.name}": each for each in distinct(make())}
    flags = dataclasses.replace(Flags.current(), benchmark=True)
    found = {}
    for (name, layer), (dtype, layout), pass_name in itertools.product(
        layers.items(), conv_problems.CONFIGURATIONS, PASSES
    ):
        call = conv_problems.of_layer(layer, dtype, layout)
        problem = dataclasses.replace(call.problem, bias=False)
        call = dataclasses.replace(call, problem=problem, flags=flags)
        found[f"{name} {dtype} {pass_name}"] = Subject(name, 1, call, pass_name)
    names = sorted(found)
    random.Random(seed).shuffle(names)  # noqa: S311 (a sample)
    return {name: found[name] for name in names}


def _limits() -> Any:
    from convtime.conv.tuned.search import Limits

    return Limits(BUDGET, 0.01, 1.1, layouts=("channels_last",))


def _measure_problem(device: torch.device, subject: Subject) -> results.Row:
    from convtime.conv.tuned.tune import tune_pass

    begin = time.perf_counter()
    entry = tune_pass(subject, device, _limits(), {})
    facts = entry.facts
    if facts is None:
        raise ValueError("PyTorch does not give this pass to cuDNN")
    return {
        "pass": subject.pass_name,
        "dtype": subject.call.dtype,
        "choice": str(entry.choice),
        "speedup": facts.speedup.value,
        "low": facts.speedup.low,
        "high": facts.speedup.high,
        "pytorch_seconds": facts.pytorch_seconds,
        "ties": len(facts.ties),
        "raced": facts.raced,
        "inexact": len(facts.inexact),
        "seconds": facts.budget_seconds,
        "whole_seconds": time.perf_counter() - begin,
    }


def _measure_oracle(device: torch.device, subject: Subject) -> results.Row:
    import dataclasses

    from convtime import compare
    from convtime.conv.tuned.tune import search_of

    chosen, tried = _searched(device, subject)
    unlimited = dataclasses.replace(_limits(), budget=math.inf)
    with search_of(subject, device, unlimited, {}) as (_source, every):
        assert every is not None
        every.build()
        every.build(choice for choice in tried if choice not in every.built)
        calls = _near_calls(every, chosen)
        compared = compare(
            calls,
            check=None,
            interference=False,
            stop="budget",
            budget=min(_ORACLE_SECONDS * len(calls), _LONGEST_ORACLE_SECONDS),
        )
    halves = medians_of_halves(compared)
    oracle = min(halves[0], key=lambda name: halves[0][name])
    return {
        "oracle": oracle,
        "choice": chosen,
        "searched": len(tried),
        "built": len(every.built),
        "candidates": len(calls),
        "regret": halves[1][chosen] / halves[1][oracle] - 1,
    }


def _searched(device: torch.device, subject: Subject) -> tuple[str, tuple[Choice, ...]]:
    """Return the choice of a search within its budget, and the candidates that it built."""
    from convtime.conv.tuned.search import PYTORCH
    from convtime.conv.tuned.tune import search_of

    with search_of(subject, device, _limits(), {}) as (_source, search):
        if search is None:
            raise ValueError("PyTorch does not give this pass to cuDNN")
        choice, _facts = search.run()
        theirs = choice == search.pytorchs or choice.backend == "pytorch"
        return PYTORCH if theirs else str(choice), search.built


def _near_calls(search: Search, chosen: str) -> dict[str, Any]:
    """Return the candidates that may be the fastest: a quick timing rules out the others."""
    from convtime import time_op

    calls = search.calls()
    times = {name: time_op(call, quick=True).median for name, call in calls.items()}
    least = min(times.values())
    near = {name: call for name, call in calls.items() if times[name] <= _NEAR * least}
    return {chosen: calls[chosen]} | near


def _probe_process(device: torch.device, seed: str) -> results.Row:
    from convtime.conv.tuned.tune import tune_pass

    found = {}
    for name, subject in [*_subjects(int(seed)).items()][:FLIP_PROBLEMS]:
        entry = tune_pass(subject, device, _limits(), {})
        if entry.facts is not None:
            pytorch = entry.choice.backend == "pytorch"
            found[name] = {
                "choice": "PyTorch" if pytorch else str(entry.choice),
                "ties": list(entry.facts.ties),
            }
    return {"problems": found}


def _measure_replay(device: torch.device, subjects: list[Subject]) -> results.Row:
    from convtime.conv.tuned.replay import replayed, replayed_elsewhere
    from convtime.core.provenance import provenance
    from convtime.tuning.plan_set import Plans

    found = [_plan_of(device, subject) for subject in subjects]
    failed = found.count(None)
    entries = [entry for entry in found if entry and entry.choice.backend == "cudnn"]
    if not entries:
        raise ValueError(f"no engine of cuDNN was chosen, and {failed} searches failed")
    plans = Plans(tuple(entries), 0.01, provenance(device))
    seconds = _seconds_of_loading(plans)
    here, elsewhere = replayed(plans, device), replayed_elsewhere(plans, device)
    repeatable = [entry.facts is not None and entry.facts.repeats for entry in entries]
    pairs = [*zip(here, elsewhere, repeatable, strict=True)]
    return {
        "plans": len(pairs),
        "failed_searches": failed,
        "same_tags": sum(one.tag == other.tag != "" for one, other, _ in pairs),
        "repeatable": sum(repeatable),
        "same_bits": sum(one.bits == other.bits for one, other, repeats in pairs if repeats),
        "load_seconds": seconds,
    }


def _plan_of(device: torch.device, subject: Subject) -> StoredPlan | None:
    """Return the chosen plan; None if the search fails, which costs no other plan."""
    from convtime.conv.tuned.tune import tune_pass

    try:
        return tune_pass(subject, device, _limits(), {})
    except RuntimeError as error:
        print(f"replay, {subject.name} {subject.pass_name}: {running.first_line(error)}")
        return None


def _seconds_of_loading(plans: Plans) -> float:
    from convtime.tuning.loading import load_plans

    with TemporaryDirectory() as folder:
        path = Path(folder) / "plans.json"
        plans.save(path)
        begin = time.perf_counter()
        load_plans(path)
        return time.perf_counter() - begin


def _measure_model(device: torch.device, network: str, batch: int, training: bool) -> results.Row:
    import torch
    from mobilenet_v2 import MobileNetV2
    from resnet50 import ResNet50

    import convtime

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model = {"ResNet-50": ResNet50, "MobileNetV2": MobileNetV2}[network]()
    model = model.to(device, torch.float16)
    model = model.to(memory_format=torch.channels_last).train(training)
    x = torch.randn(batch, 3, 224, 224, device=device, dtype=torch.float16)
    x = x.to(memory_format=torch.channels_last)

    def step(model: Any) -> object:
        if not training:
            with torch.no_grad():
                return model(x)
        return model(x).float().sum().backward()

    step(model)
    passes = None if training else ("fprop",)
    plans = convtime.tune(model, x, passes=passes, budget=0.5, knobs=False, confirm=False)
    ours = copy.deepcopy(model)
    convtime.nn.replace(ours, plans=plans)
    compared = convtime.compare(
        {"tuned": functools.partial(step, ours), "PyTorch": functools.partial(step, model)},
        check=None,
        budget=2.5,
    )
    ratio = compared.ratio("PyTorch", "tuned")
    convtime.load_plans(None)
    return {"speedup": ratio.value, "low": ratio.low, "high": ratio.high}


def _make_cases(device: torch.device) -> dict[str, Measure]:
    subjects = _subjects(SEED)
    names = [*subjects]
    cases: dict[str, Measure] = {}
    for (batch, training), network in itertools.product(STEPS, NETWORKS):
        how = "training" if training else "inference"
        cases[f"end to end/{network}, batch {batch}, {how}"] = functools.partial(
            _measure_model, device, network, batch, training
        )
    for number in range(1, PROCESSES + 1):
        cases[f"process {number}"] = functools.partial(
            running.run_probe, "tune", "process", device, str(SEED), timeout=240
        )
    cases["replay"] = functools.partial(
        _measure_replay, device, [subjects[name] for name in names[-REPLAYED:]]
    )
    cases |= {
        f"oracle/{name}": functools.partial(_measure_oracle, device, subjects[name])
        for name in names[PROBLEMS : PROBLEMS + ORACLES]
    }
    cases |= {
        f"problem/{name}": functools.partial(_measure_problem, device, subjects[name])
        for name in names[:PROBLEMS]
    }
    return cases


if __name__ == "__main__":
    running.run_on_gpu("tune", __doc__, summarise, _make_cases, probes={"process": _probe_process})
