"""The rows: verdicts in a fresh process, the truth, and samples at addresses."""

import functools

import results
import torch
from common import running, summaries
from common.calls import compare_counted
from common.truth import profiled_at_random, random_offset
from torch.nn import functional as F

from convtime import Candidate, compare, time_op
from placement import ADDRESSES, TRUTH

PROCESSES = 20
ADDRESS_COUNT = 16
ADDRESS_SAMPLES = 40  # at each
MORE = 50  # one part in so many


def operations(device: torch.device, more: bool) -> dict[str, Candidate]:
    def rand(
        count: int, *shape: int, dtype: torch.dtype = torch.float32, grows: bool = True
    ) -> torch.Tensor:
        count += count // MORE if more and grows else 0
        return torch.randn(count, *shape, device=device, dtype=dtype)

    def layer_norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[1:])

    half, brain = torch.float16, torch.bfloat16
    images = rand(50, 64, 56, 56, dtype=half).to(memory_format=torch.channels_last)
    weight = rand(64, 64, 3, 3, dtype=half, grows=False).to(memory_format=torch.channels_last)
    return {
        "relu 1Mi": Candidate(torch.relu, rand(1024, 1024)),
        "mul 4Mi": Candidate(torch.mul, rand(4096, 1024), rand(4096, 1024)),
        "gelu 16Mi": Candidate(F.gelu, rand(16_384, 1024)),
        "add 8Mi": Candidate(torch.add, rand(8192, 1024), rand(8192, 1024)),
        "softmax 2048x2048": Candidate(torch.softmax, rand(2048, 2048), 1),
        "layer_norm 8192x768": Candidate(layer_norm, rand(8192, 768)),
        "matmul 1024 bf16": Candidate(
            torch.mm, rand(1024, 1024, dtype=brain), rand(1024, 1024, dtype=brain, grows=False)
        ),
        "conv 50x64x56x56 fp16 nhwc": Candidate(
            functools.partial(F.conv2d, padding=1), images, weight
        ),
    }


def verdicts(device: torch.device) -> results.Row:
    first, other = (operations(device, more=False) for _ in range(2))
    longer = operations(device, more=True)
    return {
        "operations": {
            name: {
                **timed(candidate),
                "other tensors": compared(candidate, with_data_of(candidate, other[name])),
                "more data": compared(candidate, longer[name]),
            }
            for name, candidate in first.items()
        }
    }


def with_data_of(candidate: Candidate, other: Candidate) -> Candidate:
    """The other, whose tensors hold what the candidate's do."""
    for mine, theirs in zip(candidate.args, other.args, strict=True):
        if isinstance(mine, torch.Tensor):
            theirs.copy_(mine)
    return other


def timed(candidate: Candidate) -> results.Row:
    measurement = time_op(candidate.fn, *candidate.args)
    low, high = measurement.median_interval
    return {
        "median": measurement.median,
        "low": low,
        "high": high,
        "placements": measurement.placements,
    }


def compared(baseline: Candidate, candidate: Candidate) -> results.Row:
    found = {}

    def judge() -> None:
        comparison = compare({"baseline": baseline, "candidate": candidate})
        found.update(summaries.verdict_on(comparison, "candidate"))

    return {"seconds": running.seconds_of(judge), **found}


def measure_truth(device: torch.device) -> results.Row:
    seconds: dict[str, list[float]] = {}
    longer = operations(device, more=True)
    for name, candidate in operations(device, more=False).items():
        seconds[name] = profiled_at_random([candidate, longer[name]], device)
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


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    return {
        TRUTH: functools.partial(measure_truth, device),
        ADDRESSES: functools.partial(measure_addresses, device),
        **running.in_processes(verdicts, device, PROCESSES),
    }


if __name__ == "__main__":
    running.run("placement", make_cases)
