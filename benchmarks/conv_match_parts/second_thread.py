"""What convtime runs in another thread than the one that selected the plans."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import results
import torch
from common.kernels import launches, record
from common.running import first_line

import convtime
from convtime.conv.identity import Results, compare_bits
from convtime.conv.threads import FreshThread
from convtime.timing.activity import same_launches


def measure_second_thread(
    sides: Mapping[str, tuple[Callable[[], Results], Callable[[], Results]]], device: torch.device
) -> dict[str, results.Row]:
    """By pass: whether the second thread gives PyTorch's bits, by the first thread's kernels.

    Args:
        sides: PyTorch's call and convtime's, which this thread has made.
        device: The GPU.
    """
    if not sides:
        return {}
    try:
        return _measure(sides, device)
    except RuntimeError as error:
        return {name: {"error": f"convtime: {first_line(error)}"} for name in sides}


def _measure(
    sides: Mapping[str, tuple[Callable[[], Results], Callable[[], Results]]], device: torch.device
) -> dict[str, results.Row]:
    found: dict[str, results.Row] = {}
    calls: dict[str, Callable[[], object]] = {}
    with FreshThread(device) as second:
        for name, (theirs, ours) in sides.items():
            before = _rebuilds()
            result = second.call(ours)
            rebuilt = _rebuilds() == before + 1
            identical, repeats = compare_bits(theirs, theirs(), result)
            found[name] = {
                "bit_identical": identical, "pytorch_repeats": repeats, "rebuilt": rebuilt
            }  # fmt: skip
            calls[f"first {name}"] = ours
            calls[f"second {name}"] = functools.partial(second.call, ours)
        recorded = record(calls)
    for name, row in found.items():
        first, other = (recorded[f"{which} {name}"] for which in ("first", "second"))
        row["convtime_kernels"] = None if same_launches(first, other) else launches(other)
    return found


def _rebuilds() -> int:
    return sum(choice.rebuilds for choice in convtime.plan_cache())
