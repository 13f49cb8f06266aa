"""How long each pass of each site takes, by torch.profiler, in one side's interpreter.

With cuDNN's log on, also the tags of the plans that each pass builds.
"""

import math
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import results
import torch

from upgrade import planted_model

WARM, CALLS = 3, 20
RATES = ("copy", "cast", "buffer")  # extra work whose amount is in elements
RATE_ELEMENTS = 1 << 22
_PLAN = re.compile(r"CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR : (\S+),")


def measure_truth(device: torch.device) -> results.Row:
    sites = planted_model.described()["sites"]
    made = planted_model.model().to(device)
    longest = max(math.prod(site["input"]) for site in sites.values())
    x = torch.rand(longest, device=device)
    seconds: dict[str, dict[str, float]] = {name: {} for name in sites}
    plans: dict[str, dict[str, list[str]]] = {name: {} for name in sites}
    for name, module in made.named_children():
        for which, call in _passes(module, planted_model.input_of(sites[name], x)).items():
            before = len(_log())
            call()
            plans[name][which] = _plans(_log()[before:])
            seconds[name][which] = _seconds(call, device)
    return {"seconds": seconds, "plans": plans, "rates": _rates(device)}


def _passes(module: torch.nn.Module, given: torch.Tensor) -> dict[str, Callable[[], Any]]:
    given = given.detach()
    x = given.clone(memory_format=torch.preserve_format).requires_grad_()
    y = module(x)
    gradient = torch.rand_like(y)
    wanted = [x, *(each for each in module.parameters() if each.requires_grad)]

    def backward() -> Any:
        return torch.autograd.grad(y, wanted, gradient, retain_graph=True)

    return {"forward": torch.no_grad()(lambda: module(given)), "backward": backward}


def _rates(device: torch.device) -> dict[str, float]:
    given = (planted_model.Extra(), torch.zeros(1, device=device), RATE_ELEMENTS)
    calls = {kind: partial(planted_model.EXTRAS[kind], *given) for kind in RATES}
    return {kind: RATE_ELEMENTS / _seconds(call, device) for kind, call in calls.items()}


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    for _ in range(WARM):
        call()
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize(device)
    events = profiled.events() or []
    work = [each for each in events if str(each.device_type).endswith("CUDA")]
    return float(sum(each.time_range.elapsed_us() for each in work)) / CALLS / 1e6


def _log() -> bytes:
    log = os.environ.get("CUDNN_FRONTEND_LOG_FILE")
    return Path(log).read_bytes() if log and Path(log).exists() else b""


def _plans(log: bytes) -> list[str]:
    """The last plan that was built of each operation, which is the one that torch keeps."""
    tags = _PLAN.findall(log.decode(errors="replace"))
    return [*{tag.partition("_eng")[0]: tag for tag in tags}.values()]
