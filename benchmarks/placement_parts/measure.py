"""What placement.py measures: verdicts in this process, the truth, and samples at addresses."""

import collections
import functools
import itertools
import secrets
import time
from typing import Any

import results
import torch
from common.calls import compare_counted
from common.summaries import midmean
from common.truth import profile_calls
from torch.nn import functional as F

from convtime import Candidate, compare, time_op

PLACES = 256  # of the truth
ADDRESS_COUNT = 16
ADDRESS_SAMPLES = 40  # at each
MORE = 50  # one part in so many


def operations(device: torch.device, more: bool) -> dict[str, Candidate]:
    """Each with tensors of its own, on 2 % more data if asked for."""

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


def probe(device: torch.device) -> results.Row:
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
    begin = time.perf_counter()
    measurement = time_op(candidate.fn, *candidate.args)
    low, high = measurement.median_interval
    return {
        "median": measurement.median,
        "low": low,
        "high": high,
        "samples": len(measurement.seconds),
        "placement": measurement.placement.used,
        "placements": measurement.placements,
        "share": measurement.placement_variance_share,
        "method": measurement.method.used,
        "regime": measurement.regime.used,
        "call_seconds": time.perf_counter() - begin,
    }


def compared(baseline: Candidate, candidate: Candidate) -> results.Row:
    begin = time.perf_counter()
    comparison = compare({"baseline": baseline, "candidate": candidate})
    verdict = comparison.verdict("candidate")
    seconds = time.perf_counter() - begin
    ratio = comparison.ratio("candidate")
    return {
        "verdict": verdict,
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "samples": len(comparison.measurements["candidate"].seconds),
        "seconds": seconds,
    }


def measure_truth(device: torch.device) -> results.Row:
    """Midmeans of the profiler's times over random places: [of the data, of 2 % more] each."""
    seconds: dict[str, list[float]] = {}
    longer = operations(device, more=True)
    for name, candidate in operations(device, more=False).items():
        seconds[name] = profiled_at_random([candidate, longer[name]], device)
        torch.cuda.empty_cache()
    return {"seconds": seconds, "places": PLACES}


def profiled_at_random(candidates: list[Candidate], device: torch.device) -> list[float]:
    """The midmean of each one's calls, by turns, after a flush, each on tensors at other places.

    Of a median, the profiler's clock would say no more than a tick: 0.8 % of a kernel of 4 µs.
    """

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        start = random_offset()
        memory = torch.empty(start + value.nbytes, dtype=torch.uint8, device=device)
        whole = memory[start:].view(value.dtype)
        return whole.as_strided(value.shape, value.stride()).copy_(value)

    turns = itertools.cycle(
        [
            (number, functools.partial(candidate.fn, *map(moved, candidate.args)))
            for _ in range(PLACES)
            for number, candidate in enumerate(candidates)
        ]
    )
    # Results, and what lies between them: what is kept is not used again for the next one.
    kept: collections.deque[object] = collections.deque(maxlen=2 * PLACES)
    called: list[int] = []

    def call() -> None:
        number, work = next(turns)
        called.append(number)
        kept.append(torch.empty((1 << 20) + random_offset(), dtype=torch.uint8, device=device))
        kept.append(work())

    for _ in range(PLACES // 2 * len(candidates)):  # the first calls on other places are slower
        call()
    seconds: list[list[float]] = [[] for _ in candidates]
    for _ in candidates:  # what is held at a time fits into the queue
        found = profile_calls(call, PLACES, cold=True).busy
        for number, time_of_call in zip(called[-PLACES:], found, strict=True):
            seconds[number].append(time_of_call)
    return list(map(midmean, seconds))


def measure_addresses(device: torch.device) -> results.Row:
    """A ReLU's samples, by turns, on one pair of tensors and on pairs at addresses of their own."""
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
        "default": {"median": default.median, "low": low, "high": high},
        "placement": default.placement.used,
    }


def random_offset() -> int:
    """In bytes, within the 2 MiB that addresses are laid out anew in."""
    return 512 * secrets.randbelow(4096)
