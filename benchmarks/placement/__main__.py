"""The rows: verdicts in a fresh process, the truth, and samples at addresses."""

import functools
import time

import results
import torch
from common import running, summaries
from common.calls import compare_counted
from common.operations import Operation, operation
from common.truth import profiled_at_random, random_offset

from convtime import Candidate, compare, time_op
from placement import ADDRESSES, TRUTH

PROCESSES = 20
ADDRESS_COUNT = 16
ADDRESS_SAMPLES = 40  # at each
MORE = 50  # one part in so many
#: Name in rows: the operation with a place for its amount of data, and that amount
OPERATIONS = {
    "relu 1Mi": ("relu {}x1024", 1024),
    "mul 4Mi": ("mul {}x1024", 4096),
    "gelu 16Mi": ("gelu {}x1024", 16_384),
    "add 8Mi": ("add {}x1024", 8192),
    "softmax 2048x2048": ("softmax {}x2048", 2048),
    "layer_norm 8192x768": ("layer_norm {}x768", 8192),
    "matmul 1024 bf16": ("matmul {}x1024x1024 bf16", 1024),
    "conv 50x64x56x56 fp16 nhwc": ("conv {}x64x56x56 fp16 nhwc", 50),
}


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    return {
        TRUTH: functools.partial(measure_truth, device),
        ADDRESSES: functools.partial(measure_addresses, device),
        **running.in_processes(verdicts, device, PROCESSES),
    }


def operations(device: torch.device, more: bool) -> dict[str, Operation]:
    return {
        name: operation(pattern.format(count + (count // MORE if more else 0)), device)
        for name, (pattern, count) in OPERATIONS.items()
    }


def verdicts(device: torch.device) -> results.Row:
    first, other = (operations(device, more=False) for _ in range(2))
    longer = operations(device, more=True)
    found = {}
    for name, call in first.items():
        for mine, theirs in zip(call.args, other[name].args, strict=True):
            if isinstance(mine, torch.Tensor):
                theirs.copy_(mine)  # so that only the places differ
        measurement = time_op(call.func, *call.args, kwargs=call.keywords)
        low, high = measurement.median_interval
        found[name] = {
            "median": measurement.median,
            "low": low,
            "high": high,
            "placements": measurement.placements,
            "other tensors": _compared(call, other[name]),
            "more data": _compared(call, longer[name]),
        }
    return {"operations": found}


def _compared(baseline: Operation, candidate: Operation) -> results.Row:
    calls = {"baseline": baseline, "candidate": candidate}
    begin = time.perf_counter()
    comparison = compare(
        {
            name: Candidate(call.func, *call.args, kwargs=call.keywords)
            for name, call in calls.items()
        }
    )
    verdict = summaries.verdict_on(comparison, "candidate")
    return {"seconds": time.perf_counter() - begin, **verdict}


def measure_truth(device: torch.device) -> results.Row:
    seconds: dict[str, list[float]] = {}
    longer = operations(device, more=True)
    for name, call in operations(device, more=False).items():
        seconds[name] = profiled_at_random([call, longer[name]], device)
        torch.cuda.empty_cache()
    return {"seconds": seconds}


def measure_addresses(device: torch.device) -> results.Row:
    x = torch.randn(1024, 1024, device=device)
    # Inputs and results lie apart at random; a result keeps its place, being written in place.
    room = x.nbytes + (1 << 21)
    memory = torch.empty(4 * ADDRESS_COUNT * room, dtype=torch.uint8, device=device)

    def at_random(number: int) -> torch.Tensor:
        start = number * room + random_offset()
        return memory[start : start + x.nbytes].view(x.dtype).view_as(x)

    def relu_into(out: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.clamp_min(source, 0, out=out)

    pairs = [(at_random(2 * i), at_random(2 * i + 1).copy_(x)) for i in range(ADDRESS_COUNT)]

    def samples(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list[float]]:
        calls = {str(place): Candidate(relu_into, *pair) for place, pair in enumerate(pairs)}
        compared = compare_counted(calls, ADDRESS_SAMPLES, placement="as-is", budget=30.0)
        return [list(measurement.seconds) for measurement in compared.measurements.values()]

    default = time_op(relu_into, *pairs[0], method="kernel", cache="cold")
    low, high = default.median_interval
    return {
        "operation": "relu of 1 Mi float32",
        "same": samples(pairs[:1] * ADDRESS_COUNT),
        "other": samples(pairs),
        "default": {"low": low, "high": high},
    }


if __name__ == "__main__":
    running.run("placement", make_cases)
