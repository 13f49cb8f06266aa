"""Prints how long each pass of each site takes, by torch.profiler or Python's clock.

Run as a script by one side's interpreter: truth.py DEVICE. With cuDNN's log on, also the tags of
the plans that each pass builds.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common.running import print_result

from upgrade_parts import planted_model

WARM, CALLS = 3, 20
RATES = ("copy", "cast", "buffer")  # extra work whose amount is in elements
RATE_ELEMENTS = 1 << 22
_PLAN = re.compile(r"CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR : (\S+),")


def main(device: torch.device) -> None:
    described = planted_model.described()
    made = planted_model.model().to(device)
    sites = described["sites"]
    longest = max(math.prod(site["input"]) for site in sites.values())
    x = torch.rand(longest, device=device)
    seconds: dict[str, dict[str, float]] = {}
    plans: dict[str, dict[str, list[str]]] = {}
    for name, module in made.named_children():
        seconds[name], plans[name] = {}, {}
        for which, call in _passes(module, planted_model.input_of(sites[name], x)).items():
            before = _log_size()
            call()
            plans[name][which] = _plans_since(before)
            seconds[name][which] = _seconds(call, device)
    print_result({"seconds": seconds, "plans": plans, "rates": _rates(device)})


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
    """Elements a second."""
    site = planted_model.Extra()
    x = torch.zeros(1, device=device)
    return {
        kind: RATE_ELEMENTS
        / _seconds(partial(planted_model.EXTRAS[kind], site, x, RATE_ELEMENTS), device)
        for kind in RATES
    }


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    for _ in range(WARM):
        call()
    if device.type == "cpu":
        taken = []
        for _ in range(CALLS):
            begin = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize(device)
    events = profiled.events() or []
    work = [each for each in events if str(each.device_type).endswith("CUDA")]
    return float(sum(each.time_range.elapsed_us() for each in work)) / CALLS / 1e6


def _log_size() -> int:
    log = os.environ.get("CUDNN_FRONTEND_LOG_FILE")
    return Path(log).stat().st_size if log and Path(log).exists() else 0


def _plans_since(start: int) -> list[str]:
    """The last plan that was built of each operation, which is the one that torch keeps."""
    log = os.environ.get("CUDNN_FRONTEND_LOG_FILE")
    if not log or not Path(log).exists():
        return []
    text = Path(log).read_bytes()[start:].decode(errors="replace")
    kept = {tag.partition("_eng")[0]: tag for tag in _PLAN.findall(text)}
    return [*kept.values()]


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
