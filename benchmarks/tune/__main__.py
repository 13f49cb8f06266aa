"""The rows, by kind."""

import copy
import dataclasses
import functools
import itertools
import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import results
import torch
from common import running, summaries
from common.mobilenet_v2 import MobileNetV2
from common.resnet import ResNet50
from conv_match import problems as conv_problems

import convtime
from convtime.conv.call import PASSES, Flags
from convtime.conv.csv_file import from_csv
from convtime.conv.plans.loading import load_plans
from convtime.conv.plans.passes import ConvPass
from convtime.conv.plans.plan_set import Choice, Plans, StoredPlan
from convtime.conv.plans.replay import replay, replay_elsewhere
from convtime.conv.plans.search import PYTORCH, Limits, Search
from convtime.conv.plans.tune import search_of, tune_pass
from convtime.device.provenance import provenance

SEED = 0
PROBLEMS = 100
ORACLES = 12
FLIP_PROBLEMS = 12
PROCESSES = 4
REPLAYED = 16
NETWORKS = {"ResNet-50": ResNet50, "MobileNetV2": MobileNetV2}
STEPS = ((32, True), (1, False))  # batch, whether it is training
LIMITS = Limits(1.2, 0.01, 1.1, layouts=("channels_last",))
_ORACLE_SECONDS = 0.1  # per candidate
_NEAR = 1.2  # candidates that are slower than this in the race are not the oracle


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    passes = _passes(SEED)
    names = [*passes]
    cases: dict[str, running.Measure] = {}
    for (batch, training), network in itertools.product(STEPS, NETWORKS):
        how = "training" if training else "inference"
        cases[f"end to end/{network}, batch {batch}, {how}"] = functools.partial(
            _measure_model, device, network, batch, training
        )
    cases |= running.in_processes(probe_process, device, PROCESSES, str(SEED), timeout=240)
    again = [passes[name] for name in names[-REPLAYED:]]
    cases["replay"] = functools.partial(_measure_replay, device, again)
    for name in names[PROBLEMS : PROBLEMS + ORACLES]:
        cases[f"oracle/{name}"] = functools.partial(_measure_oracle, device, passes[name])
    for name in names[:PROBLEMS]:
        cases[f"problem/{name}"] = functools.partial(_measure_problem, device, passes[name])
    return cases


def _passes(seed: int) -> dict[str, ConvPass]:
    layers = {f"deepbench {each.name}": each for each in from_csv(conv_problems.DEEPBENCH)}
    for network, own in conv_problems.NETWORKS.items():
        layers |= {f"{network} {each.name}": each for each in own}
    flags = dataclasses.replace(Flags.current(), benchmark=True)
    found = {}
    for (name, layer), (dtype, layout), pass_name in itertools.product(
        layers.items(), conv_problems.CONFIGURATIONS, PASSES
    ):
        call = conv_problems.of_layer(layer, dtype, layout)
        problem = dataclasses.replace(call.problem, bias=False)
        call = dataclasses.replace(call, problem=problem, flags=flags)
        found[f"{name} {dtype} {pass_name}"] = ConvPass(name, 1, call, pass_name)
    names = sorted(found)
    random.Random(seed).shuffle(names)  # noqa: S311 (a sample)
    return {name: found[name] for name in names}


def _measure_problem(device: torch.device, conv_pass: ConvPass) -> results.Row:
    entry = tune_pass(conv_pass, device, LIMITS, {})
    facts = entry.facts
    if facts is None:
        raise ValueError("PyTorch does not give this pass to cuDNN")
    return {
        "pass": conv_pass.pass_name,
        "dtype": conv_pass.call.dtype,
        "choice": str(entry.choice),
        **_interval_of(facts.speedup),
        "seconds": facts.budget_seconds,
    }


def _interval_of(speedup: Any) -> results.Row:
    return {"speedup": speedup.value, "low": speedup.low, "high": speedup.high}


def _measure_oracle(device: torch.device, conv_pass: ConvPass) -> results.Row:
    chosen, tried = _searched(device, conv_pass)
    unlimited = dataclasses.replace(LIMITS, budget=math.inf)
    with search_of(conv_pass, device, unlimited, {}) as (_source, every):
        assert every is not None
        every.build()
        every.build(choice for choice in tried if choice not in every.built)
        calls = _near_calls(every, chosen)
        oracle, medians = summaries.find_oracle(calls, _ORACLE_SECONDS)
    return {
        "oracle": oracle,
        "choice": chosen,
        "regret": medians[chosen] / medians[oracle] - 1,
    }


def _searched(device: torch.device, conv_pass: ConvPass) -> tuple[str, tuple[Choice, ...]]:
    """Return the choice of a search within its budget, and the candidates that it built."""
    with search_of(conv_pass, device, LIMITS, {}) as (_source, search):
        if search is None:
            raise ValueError("PyTorch does not give this pass to cuDNN")
        choice, _facts = search.run()
        theirs = choice == search.pytorch_choice or choice.backend == "pytorch"
        return PYTORCH if theirs else str(choice), search.built


def _near_calls(search: Search, chosen: str) -> dict[str, Any]:
    """Return the candidates that may be the fastest: a quick timing rules out the others."""
    calls = search.calls()
    times = {name: convtime.time_op(call, quick=True).median for name, call in calls.items()}
    least = min(times.values())
    near = {name: call for name, call in calls.items() if times[name] <= _NEAR * least}
    return {chosen: calls[chosen]} | near


def probe_process(device: torch.device, seed: str) -> results.Row:
    found = {}
    for name, conv_pass in [*_passes(int(seed)).items()][:FLIP_PROBLEMS]:
        entry = tune_pass(conv_pass, device, LIMITS, {})
        if entry.facts is not None:
            pytorch = entry.choice.backend == "pytorch"
            choice = "PyTorch" if pytorch else str(entry.choice)
            found[name] = {"choice": choice, "ties": list(entry.facts.ties)}
    return {"problems": found}


def _measure_replay(device: torch.device, passes: list[ConvPass]) -> results.Row:
    found = [_plan_of(device, conv_pass) for conv_pass in passes]
    failed = found.count(None)
    entries = [entry for entry in found if entry and entry.choice.backend == "cudnn"]
    if not entries:
        raise ValueError(f"no engine of cuDNN was chosen, and {failed} searches failed")
    plans = Plans(tuple(entries), 0.01, provenance(device))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plans.json"
        plans.save(path)
        seconds = running.seconds_of(lambda: load_plans(path))
    here, elsewhere = replay(plans, device), replay_elsewhere(plans, device)
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


def _plan_of(device: torch.device, conv_pass: ConvPass) -> StoredPlan | None:
    """Return the chosen plan; None if the search fails, which costs no other plan."""
    try:
        return tune_pass(conv_pass, device, LIMITS, {})
    except RuntimeError as error:
        print(f"replay, {conv_pass.name} {conv_pass.pass_name}: {running.first_line(error)}")
        return None


def _measure_model(device: torch.device, network: str, batch: int, training: bool) -> results.Row:
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model = NETWORKS[network]().to(device, torch.float16)
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
    plans = convtime.conv.tune(model, x, passes=passes, budget=0.5, knobs=False, confirm=False)
    ours = copy.deepcopy(model)
    convtime.nn.replace(ours, plans=plans)
    compared = convtime.compare(
        {"tuned": functools.partial(step, ours), "PyTorch": functools.partial(step, model)},
        check=None,
        budget=2.5,
    )
    convtime.conv.load_plans(None)
    return _interval_of(compared.ratio("PyTorch", "tuned"))


if __name__ == "__main__":
    running.run("tune", make_cases)
