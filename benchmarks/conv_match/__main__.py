"""The rows of conv_match, and of conv_match_nd."""

import functools
from collections.abc import Mapping

import torch
from common.running import Measure, run

from conv_match import LARGE, MODE_B, MODE_B_PROBLEMS, SEARCHED_PROBLEMS, SEARCHES
from conv_match.child import Process
from conv_match.host import HOST_CASES, measure_host, measure_memory
from conv_match.passes import measure_call
from conv_match.problems import all_calls
from convtime.conv.call import ConvCall


def match_cases(calls: Mapping[str, ConvCall], device: torch.device) -> dict[str, Measure]:
    return {key: functools.partial(measure_call, call, device) for key, call in calls.items()}


def make_cases(device: torch.device) -> dict[str, Measure]:
    calls = all_calls()
    cases = match_cases(calls, device)
    usual = [key for key in calls if not key.startswith(LARGE)]
    for what, count in ((MODE_B, MODE_B_PROBLEMS), (SEARCHES, SEARCHED_PROBLEMS)):
        process = Process(what, device)
        for key in (usual[index * len(usual) // count] for index in range(count)):  # evenly spread
            cases[f"{what} {key}"] = functools.partial(process.measure, calls[key])
    for key, (what, case) in HOST_CASES.items():
        cases[key] = functools.partial(measure_host, what, case, device)
    return cases | {"memory": functools.partial(measure_memory, device)}


if __name__ == "__main__":
    run("conv_match", make_cases)
