"""The row of a call: PyTorch's and convtime's call of each pass, and how they compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import results
import torch
from common.running import first_line

import convtime
from conv_match_parts.rows import CUDNN_BACKENDS, PASSES, is_outlier
from convtime.conv.call import ConvCall, ConvTensors
from convtime.conv.identity import compare_bits, convtime_call
from convtime.conv.plan_oracle import PlanOracle
from convtime.core import codec
from convtime.results.activity import DeviceActivity, same_launches
from convtime.results.measurement import Measurement

_ROUNDS = (6, 25)  # at least, at most
_ROUND_SECONDS = 0.03  # that all rounds of a problem may take on the GPU, above the least
_SURE_ROUNDS = 200  # where a ratio is outside of its limits


def measure_call(call: ConvCall, oracle: PlanOracle, device: torch.device) -> results.Row:
    """A call's row, less its key."""
    row = {"problem": codec.encode(call)}
    with call.flags.applied(), torch.no_grad():
        try:
            tensors = call.tensors(device)
            theirs = {name: call.pytorch_call(name, tensors) for name in PASSES}
            firsts = {name: run() for name, run in theirs.items()}
            torch.cuda.synchronize()  # or a kernel that fails would look like convtime's
        except RuntimeError as error:
            return row | {"error": f"PyTorch: {first_line(error)}"}
        backends = {name: call.backend(name, tensors) for name in PASSES}
        to_cudnn = [name for name in PASSES if backends[name] in CUDNN_BACKENDS]
        logs = oracle.ask(call, to_cudnn) if to_cudnn else {}
        passes: dict[str, results.Row] = {}
        ours: dict[str, Callable[[], Any]] = {}
        for name in PASSES:
            passes[name] = {"backend": backends[name]}
            if name in logs:
                plan = logs[name].plan
                passes[name] |= {
                    "pytorch_tag": plan.tag if plan else None,
                    "pytorch_unknown": logs[name].unknown,
                }
            try:
                run, facts = _first_calls(call, name, tensors, theirs[name], firsts.pop(name))
                passes[name] |= facts
                ours[name] = run
            except RuntimeError as error:
                passes[name]["error"] = f"convtime: {first_line(error)}"
        _time(passes, theirs, ours)
    return row | {"passes": passes}


def _first_calls(
    call: ConvCall, name: str, tensors: ConvTensors, theirs: Callable[[], Any], first: Any
) -> tuple[Callable[[], Any], results.Row]:
    """convtime's call, and what is known of both before they are timed."""
    ours = convtime_call(call, name, tensors)
    convtime.clear_plan_cache()
    result = ours()
    expected = call.cudnn_pass(name)
    choices = [choice for choice in convtime.plan_cache() if choice.pass_name == expected]
    identical, repeats = compare_bits(theirs, first, result)
    return ours, {
        "convtime_tag": choices[-1].tag if choices else None,
        "bit_identical": identical,
        "pytorch_repeats": repeats,
        "peak_bytes": [_peak_bytes(theirs), _peak_bytes(ours)],
    }


def _peak_bytes(call: Callable[[], Any]) -> int:
    """Device memory that one call takes at most, its result included."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def _time(
    passes: dict[str, results.Row],
    theirs: dict[str, Callable[[], Any]],
    ours: dict[str, Callable[[], Any]],
) -> None:
    """Adds samples and kernels to the passes that convtime ran, all of them interleaved."""
    if not ours:
        return
    sides = {"pytorch": theirs, "convtime": ours}
    candidates = {(who, name): sides[who][name] for name in ours for who in sides}
    most = _rounds(list(candidates.values()))
    _add_samples(passes, candidates, most)
    for name in ours:
        if is_outlier(passes[name]):
            again = {key: call for key, call in candidates.items() if key[1] == name}
            _add_samples(passes, again, _SURE_ROUNDS)


def _rounds(calls: list[Callable[[], Any]]) -> int:
    """How many rounds of all calls fit into the time that a problem has."""
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    seconds = start.elapsed_time(end) / 1e3
    return max(_ROUNDS[0], min(_ROUNDS[1], int(_ROUND_SECONDS / seconds)))


def _add_samples(
    passes: dict[str, results.Row],
    candidates: dict[tuple[str, str], Callable[[], Any]],
    rounds: int,
) -> None:
    compared = convtime.compare(
        {" ".join(key): call for key, call in candidates.items()},
        method="kernel",
        warmup=1,
        stop="count",
        min_samples=rounds,
        max_samples=rounds,
        budget=60.0,
    )
    found = {key: compared.measurements[" ".join(key)] for key in candidates}
    for name in dict.fromkeys(name for _, name in candidates):
        theirs, ours = found["pytorch", name], found["convtime", name]
        same = same_launches(theirs.activities, ours.activities)
        passes[name] |= {
            "kernels": _launches(theirs.activities),
            "convtime_kernels": None if same else _launches(ours.activities),
            "ns": {"pytorch": _nanoseconds(theirs), "convtime": _nanoseconds(ours)},
        }


def _launches(activities: Sequence[DeviceActivity]) -> list[list[Any]]:
    return [
        [activity.name or activity.kind, activity.grid, activity.block] for activity in activities
    ]


def _nanoseconds(measurement: Measurement) -> list[int]:
    return [round(1e9 * seconds) for seconds in measurement.seconds]
