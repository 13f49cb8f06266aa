"""Whether medians, intervals and verdicts hold for other tensors than those that were timed.

A row is a process, in which each operation is timed once by time_op, and compared twice: with
itself on tensors that were allocated apart, and with itself on 2 % more data; all with default
options. One more row has the truth of the latter by torch.profiler, over random places of arguments
and results that are not convtime's. Where 2 % more data take another time than that (a matmul's
tiles, a launch of a few microseconds), the pair is shown and does not count. Another row, for the
picture, has the samples of one kernel at sixteen addresses, and sixteen times at one of them.

The spread of an operation is the range of the processes' medians, less one tick of the clock that
CUPTI's records are from, over the median of the medians.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import secrets
import statistics
import time
from typing import TYPE_CHECKING, Any

import results
from common import running, summaries

if TYPE_CHECKING:
    import torch

    import convtime

PROCESSES = 20
PLACES = 256  # of the truth
TICK_SECONDS = 32e-9
TOLERANCE = 0.005  # of a true ratio of 1.02
TRUTH = "truth"
ADDRESSES = "addresses"
ADDRESS_COUNT = 16
ADDRESS_SAMPLES = 40  # at each
MORE = 50  # one part in so many


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Shares of the verdicts and intervals of all processes and operations."""
    processes = processes_of(rows)
    if not processes:
        return {"processes": 0}
    found = [entry for row in processes for entry in row["operations"].values()]
    again = [entry["other tensors"] for entry in found]
    grand = {name: statistics.median(medians) for name, medians in medians_of(processes).items()}
    spreads = map(spread_less_one_tick, medians_of(processes).values())
    counted = [
        row["operations"][name]["more data"]
        for name, ratio in true_ratios(rows).items()
        if abs(ratio - 1.02) <= TOLERANCE
        for row in processes
    ]
    more = [entry["more data"] for entry in found]
    return summaries.known(
        processes=len(processes),
        ops=len(processes[0]["operations"]),
        aa_other_tensors_false_verdicts=summaries.share(
            summaries.is_certain(pair["verdict"]) for pair in again
        ),
        aa_other_tensors_same=summaries.share(pair["verdict"] == "same" for pair in again),
        aa_other_tensors_interval_covers_one=summaries.share(
            pair["low"] <= 1 <= pair["high"] for pair in again
        ),
        time_op_interval_covers_grand_median=summaries.share(
            entry["low"] <= grand[name] <= entry["high"]
            for row in processes
            for name, entry in row["operations"].items()
        ),
        worst_spread_less_one_tick=max(spreads) if len(processes) > 1 else None,
        true_2pct_found=summaries.share(pair["verdict"] == "slower" for pair in counted),
        slowest_verdict_s=summaries.most(pair["seconds"] for pair in (*again, *more)),
    )


def processes_of(rows: list[results.Row]) -> list[results.Row]:
    return [row for row in rows if row["key"] not in (TRUTH, ADDRESSES)]


def medians_of(processes: list[results.Row]) -> dict[str, list[float]]:
    names = processes[0]["operations"]
    return {name: [row["operations"][name]["median"] for row in processes] for name in names}


def spread_less_one_tick(medians: list[float]) -> float:
    return max(0.0, max(medians) - min(medians) - TICK_SECONDS) / statistics.median(medians)


def true_ratios(rows: list[results.Row]) -> dict[str, float]:
    """By operation, the time on 2 % more data over that on the same; empty before it is known."""
    return {
        name: seconds[1] / seconds[0]
        for row in rows
        if row["key"] == TRUTH
        for name, seconds in row["seconds"].items()
    }


def table(rows: list[results.Row]) -> str:
    processes = processes_of(rows)
    ratios = true_ratios(rows)
    lines = []
    for name, medians in medians_of(processes).items() if processes else ():
        entries = [row["operations"][name] for row in processes]
        grand = statistics.median(medians)
        covering = sum(entry["low"] <= grand <= entry["high"] for entry in entries)
        again = [entry["other tensors"] for entry in entries]
        same = sum(pair["verdict"] == "same" for pair in again)
        slower = sum(entry["more data"]["verdict"] == "slower" for entry in entries)
        lines.append(
            (
                name,
                f"{1e6 * grand:.2f}",
                f"{spread_less_one_tick(medians):.2%}",
                f"{covering} of {len(entries)}",
                summaries.reach((pair["ratio"] for pair in again), ".4f"),
                f"{same} of {len(again)}",
                f"{ratios.get(name, math.nan):.4f}",
                f"{slower} of {len(entries)}",
            )
        )
    return summaries.markdown(
        "operation | median (µs): | spread less a tick: | intervals that have the median of all: "
        "| other tensors: ratios: | same: | 2 % more data, true ratio: | found slower:",
        lines,
    )


def picture(document: dict[str, Any]) -> bytes:
    """A PNG: one kernel's samples at one address and at sixteen, and what time_op says of it."""
    from convtime.core.figure import BLUE, ORANGE, Figure, columns, numbers, quantity

    (row,) = (row for row in document["rows"] if row["key"] == ADDRESSES)
    default = row["default"]
    across = quantity("place", "in the order of their medians")
    time = quantity("time", "time of a call (µs)")
    low, high = numbers([default["low"], default["high"]], 1e6)
    interval = {
        "data": {"values": [{"low": low, "high": high}]},
        "mark": {"type": "rect", "color": BLUE, "opacity": 0.25},
        "encoding": {"y": time | {"field": "low"}, "y2": {"field": "high"}},
    }
    panels = []
    titles = ("the same tensors, sixteen times", "sixteen other addresses")
    for kind, title in zip(("same", "other"), titles, strict=True):
        found = sorted(row[kind], key=statistics.median)
        samples = {
            **columns(
                place=[place for place, seconds in enumerate(found, 1) for _ in seconds],
                time=numbers([each for seconds in found for each in seconds], 1e6),
            ),
            "mark": {"type": "point", "filled": True, "size": 8, "style": "ink"},
            "encoding": {"x": across, "y": time},
        }
        medians = {
            **columns(
                place=[*range(1, len(found) + 1)], time=numbers(map(statistics.median, found), 1e6)
            ),
            "mark": {"type": "tick", "orient": "horizontal", "thickness": 3, "color": ORANGE},
            "encoding": {"x": across, "y": time},
        }
        panels.append(
            {"title": title, "width": 380, "height": 300, "layer": [interval, samples, medians]}
        )
    facts = document["provenance"]
    return Figure(
        title=f"{row['operation']}, cold cache; {facts['gpu']}, torch {facts['torch']}",
        description="Samples of one kernel at one address and at sixteen, with their medians.",
        view={"hconcat": panels, "resolve": {"scale": {"y": "shared"}}},
        key="dot: sample; line: median; band: time_op's interval by default",
    ).content(".png")


def operations(device: torch.device, more: bool) -> dict[str, convtime.Candidate]:
    """Each with tensors of its own, on 2 % more data if asked for."""
    import torch
    from torch.nn import functional as F

    from convtime import Candidate

    def size(count: int) -> int:
        return count + count // MORE if more else count

    def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    def layer_norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[1:])

    bf16, rows = torch.bfloat16, size(2048)
    images = rand(size(50), 64, 56, 56, dtype=torch.float16).to(memory_format=torch.channels_last)
    weight = rand(64, 64, 3, 3, dtype=torch.float16).to(memory_format=torch.channels_last)
    convolve = functools.partial(F.conv2d, padding=1)
    return {
        "relu 1Mi": Candidate(torch.relu, rand(size(1024), 1024)),
        "mul 4Mi": Candidate(torch.mul, rand(size(4096), 1024), rand(size(4096), 1024)),
        "gelu 16Mi": Candidate(F.gelu, rand(size(16_384), 1024)),
        "add 8Mi": Candidate(torch.add, rand(size(8192), 1024), rand(size(8192), 1024)),
        "softmax 2048x2048": Candidate(torch.softmax, rand(rows, 2048), 1),
        "layer_norm 8192x768": Candidate(layer_norm, rand(size(8192), 768)),
        "matmul 1024 bf16": Candidate(
            torch.mm, rand(size(1024), 1024, dtype=bf16), rand(1024, 1024, dtype=bf16)
        ),
        "conv 50x64x56x56 fp16 nhwc": Candidate(convolve, images, weight),
    }


def probe(device: torch.device) -> results.Row:
    """What this process finds of each operation."""
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


def with_data_of(candidate: convtime.Candidate, other: convtime.Candidate) -> convtime.Candidate:
    """The other, whose tensors hold what the candidate's do."""
    import torch

    for mine, theirs in zip(candidate.args, other.args, strict=True):
        if isinstance(mine, torch.Tensor):
            theirs.copy_(mine)
    return other


def timed(candidate: convtime.Candidate) -> results.Row:
    from convtime import time_op

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


def compared(baseline: convtime.Candidate, candidate: convtime.Candidate) -> results.Row:
    from convtime import compare

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
    import torch

    seconds: dict[str, list[float]] = {}
    longer = operations(device, more=True)
    for name, candidate in operations(device, more=False).items():
        seconds[name] = profiled_at_random([candidate, longer[name]], device)
        torch.cuda.empty_cache()
    return {"seconds": seconds, "places": PLACES}


def profiled_at_random(candidates: list[convtime.Candidate], device: torch.device) -> list[float]:
    """The midmean of each one's calls, by turns, after a flush, each on tensors at other places.

    Of a median, the profiler's clock would say no more than a tick: 0.8 % of a kernel of 4 µs.
    """
    import torch
    from common.summaries import midmean
    from common.truth import profile_calls

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
    import torch

    from convtime import Candidate, compare, time_op

    x = torch.randn(1024, 1024, device=device)
    # Inputs and results lie apart at random; a result keeps its place, being written in place.
    memory = torch.empty(
        4 * ADDRESS_COUNT * (x.nbytes + (1 << 21)), dtype=torch.uint8, device=device
    )

    def at_random(number: int) -> torch.Tensor:
        start = number * (x.nbytes + (1 << 21)) + random_offset()
        return memory[start : start + x.nbytes].view(x.dtype).view_as(x)

    def relu_into(out: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.clamp_min(source, 0, out=out)

    pairs = [(at_random(2 * i), at_random(2 * i + 1).copy_(x)) for i in range(ADDRESS_COUNT)]

    def samples(candidates: list[convtime.Candidate]) -> list[list[float]]:
        compared = compare(
            {str(place): candidate for place, candidate in enumerate(candidates)},
            method="kernel",
            cache="cold",
            placement="as-is",
            check=None,
            interference=False,
            stop="count",
            min_samples=ADDRESS_SAMPLES,
            max_samples=ADDRESS_SAMPLES,
            budget=30.0,
        )
        return [list(measurement.seconds) for measurement in compared.measurements.values()]

    default = time_op(relu_into, *pairs[0], method="kernel", cache="cold")
    low, high = default.median_interval
    return {
        "operation": "relu of 1 Mi float32",
        "same": samples([Candidate(relu_into, *pairs[0])] * ADDRESS_COUNT),
        "other": samples([Candidate(relu_into, *pair) for pair in pairs]),
        "default": {"median": default.median, "low": low, "high": high},
        "placement": default.placement.used,
    }


def random_offset() -> int:
    """In bytes, within the 2 MiB that addresses are laid out anew in."""
    return 512 * secrets.randbelow(4096)


def make_cases(device: torch.device) -> dict[str, running.Measure]:
    process = functools.partial(running.run_probe, "placement", "verdicts", device)
    cases: dict[str, running.Measure] = {
        TRUTH: functools.partial(measure_truth, device),
        ADDRESSES: functools.partial(measure_addresses, device),
    }
    return cases | {f"process {number}": process for number in range(1, PROCESSES + 1)}


if __name__ == "__main__":
    running.run_on_gpu("placement", __doc__, summarise, make_cases, probes={"verdicts": probe})
