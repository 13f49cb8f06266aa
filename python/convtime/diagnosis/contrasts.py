"""The contrasts: each varies one factor, decides whether that is worthwhile, and adds evidence.

They run in this order. The most informative contrasts per second come first, since the budget may
run out before the last one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Literal

import torch

from convtime.conv.kernels import LAYOUT, role_of
from convtime.counting.counters import counters
from convtime.diagnosis import host, neighbors, process
from convtime.diagnosis.effects import account_of
from convtime.diagnosis.evidence import Calls, Evidence, Held, Timing, Work
from convtime.diagnosis.operation import (
    BUDGET,
    Operation,
    copies_in_other_memory,
    copy_elsewhere,
    new_like,
    seconds_of,
)
from convtime.diagnosis.rules import BYTES_READ, BYTES_WRITTEN, IN_EACH_CALL
from convtime.diagnosis.serializing import look_at_results
from convtime.diagnosis.tracing import trace
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.sampling.copying import Original
from convtime.timing.sampling.placement import MOST_OBJECTS, is_mapped, obstacle

_HELD_SECONDS = 0.02
_TRACED_CALLS = 10
_WORK_SECONDS, _LONG_CALLS = 4.0, 40
_FEWEST_PLACES = 8
_MOVED = 5
_LONGEST_REGIME = 2.0  # seconds of a call; longer calls reach no regime
_BUSY_FOR_A_CLOCK = 0.5  # share of a call's time
_BATCHED = 8
_SMALL_LAUNCH = 4096  # elements


@dataclasses.dataclass(frozen=True)
class Contrast:
    """A factor to vary, or an observation to make.

    Attributes:
        name: name of the contrast.
        varies: description of the varied factor.
        seconds: approximate duration for short calls.
        calls: least number of calls.
        obstacles: functions that return why the contrast does not apply to a operation; empty if it
            applies.
        look: adds the contrast's results to the evidence.
        only_on: the only supported device type; empty for any.
        kernel_seconds: approximate additional duration per kernel of a call.
    """

    name: str
    varies: str
    seconds: float
    calls: int
    obstacles: tuple[Callable[[Operation, Evidence], str], ...]
    look: Callable[[Operation, Evidence], Evidence]
    only_on: Literal["cpu", "cuda", ""] = ""
    kernel_seconds: float = 0.0

    def obstacle(self, operation: Operation, evidence: Evidence) -> str:
        """Return why the contrast does not apply; empty if it applies."""
        return next(filter(None, (each(operation, evidence) for each in self.obstacles)), "")

    def cost(self, evidence: Evidence) -> float:
        """Return the approximate duration in seconds."""
        short = self.seconds + self.kernel_seconds * evidence.work.kernels
        return max(short, self.calls * evidence.calls.waiting.median)


def time_work(operation: Operation, calls: Calls) -> Measurement:
    """Time the operation with the defaults of ``time_op``."""
    return operation.time(
        placement="auto",
        regime="auto",
        warmup="steady",
        stop="interval",
        tolerance=0.01,
        budget=2 * BUDGET,
        timeout=max(_WORK_SECONDS, _LONG_CALLS * calls.waiting.median),  # bursts idle for long
    )


def work_of(operation: Operation, measured: Measurement) -> Work:
    """Return the device's work in a call, from the measurement of :func:`time_work`."""
    activities = measured.activities
    conversion = (each.median for each in activities if role_of(each) == LAYOUT)
    copies = [each for each in activities if each.kind == "memcpy"]
    tensors = [] if operation.obstacle else operation.tensors  # otherwise the list is incomplete
    mapped = [each for each in tensors if operation.on_gpu and is_mapped(each.data_ptr())]
    return Work(
        seconds=measured.median,
        span=statistics.median(measured.span_seconds or measured.seconds),
        mean=measured.mean,
        fewest=measured.min,
        kernels=sum(each.kind == "kernel" for each in activities),
        copies=len(copies),
        copied_bytes=sum(each.bytes for each in copies),
        conversion=sum(conversion),
        held=measured.queue != "none" if operation.on_gpu else None,
        other_launches=measured.other_launches / len(measured.seconds),
        place_share=measured.placement_variance_share,
        place_spread=_spread_of_places(measured),
        highest_clock_hz=measured.max_sm_clock_hz,
        tensor_bytes=sum(each.nbytes for each in tensors),
        remarkable_inputs=len(measured.inputs),
        mapped_bytes=sum(each.nbytes for each in mapped),
    )


def _spread_of_places(measured: Measurement) -> float | None:
    places: dict[int, list[float]] = defaultdict(list)
    for place, seconds in zip(measured.places, measured.seconds, strict=False):
        places[place].append(seconds)
    if len(places) < _FEWEST_PLACES:
        return None
    deciles = statistics.quantiles(map(statistics.median, places.values()), n=10)
    return (deciles[-1] - deciles[0]) / measured.median


def _without_setup(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    if operation.candidate.acts_before_calls:
        return "work runs before each call (setup, grad_to_none or a forward pass)"
    return ""


def _has_tensors(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    return operation.obstacle


def _look_at_launch(operation: Operation, evidence: Evidence) -> Evidence:
    small = torch.zeros(_SMALL_LAUNCH, device=operation.device)
    smallest = operation.time(Candidate(torch.neg, small), method="cpu", budget=BUDGET / 2).median
    return dataclasses.replace(evidence, smallest_launch=smallest)


def _look_at_trace(operation: Operation, evidence: Evidence) -> Evidence:
    if evidence.calls.allocations >= IN_EACH_CALL:
        torch.cuda.empty_cache()  # cached blocks of other contrasts would hide allocations
    return dataclasses.replace(evidence, trace=trace(operation, _TRACED_CALLS))


def _look_at_held(operation: Operation, evidence: Evidence) -> Evidence:
    """Call the operation once after a kernel that keeps the stream busy."""
    operation.wait()
    torch.ops.convtime.spin_ns(int(_HELD_SECONDS * 1e9))
    returned = seconds_of(operation.call)
    operation.wait()
    return dataclasses.replace(evidence, held=Held(_HELD_SECONDS, returned))


def _look_at_cache(operation: Operation, evidence: Evidence) -> Evidence:
    times = {cache: operation.timing(cache=cache) for cache in ("cold", "cold-clean", "warm")}
    return evidence.with_contrast("cache", times)


def _look_at_rotation(operation: Operation, evidence: Evidence) -> Evidence:
    return evidence.with_contrast("cache", {"rotated": operation.timing(cache="rotate")})


def _look_at_method(operation: Operation, evidence: Evidence) -> Evidence:
    """Time with events, as other tools do, and in a graph, which needs no launches.

    A capture restricts other threads of the process. If others are active, the graph is skipped.
    """
    times: dict[str, Timing] = {}
    for method in ("event",) if evidence.work.other_launches else ("event", "graph"):
        with contextlib.suppress(RuntimeError, ValueError):  # not everything can be captured
            measured = operation.time(method=method, cache="warm")
            times[method] = Timing.of(measured)
            if method == "event" and not measured.overhead_reason:
                evidence = dataclasses.replace(evidence, event_cost=measured.overhead)
    with contextlib.suppress(RuntimeError):
        measured = operation.time(method="event", cache="warm", queue="none")
        with_overhead = statistics.median(measured.raw_seconds or measured.seconds)
        times["events, not queued"] = dataclasses.replace(
            Timing.of(measured), median=with_overhead, low=None, high=None
        )
    return evidence.with_contrast("method", times)


def _look_at_placement(operation: Operation, evidence: Evidence) -> Evidence:
    """Time the operation unchanged, and on copies of its tensors at other addresses."""
    copies = [operation.with_tensors(copy_elsewhere, f"moved {number}") for number in range(_MOVED)]
    here, *elsewhere = operation.time_all(
        [operation.candidate, *copies], cache="warm", budget=3 * BUDGET
    )
    middle = sorted(elsewhere, key=lambda each: each.median)[_MOVED // 2]
    return evidence.with_contrast(
        "placement", {"as-is": Timing.of(here), "moved": Timing.of(middle)}
    )


def _look_at_random_places(operation: Operation, evidence: Evidence) -> Evidence:
    """Time at the current and at many addresses; not interleaved, to keep the cache warm."""
    measured = operation.time(cache="warm", placement="random", budget=2 * BUDGET)
    if measured.placement != "random":
        raise ValueError(measured.placement.reason)
    times = {"as-is": operation.timing(cache="warm"), "random": Timing.of(measured)}
    return evidence.with_contrast("places", times)


def _layouts(operation: Operation) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return other layouts for the tensors, by name; empty if there are none."""
    layouts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    tensors = operation.tensors
    if not all(each.is_contiguous() for each in tensors):
        layouts["contiguous"] = torch.Tensor.contiguous
    images = [each for each in tensors if each.dim() == 4]
    if images and not all(each.is_contiguous(memory_format=torch.channels_last) for each in images):
        layouts["channels_last"] = lambda each: (
            each.contiguous(memory_format=torch.channels_last) if each.dim() == 4 else each
        )
    return layouts


def _has_layouts(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    return "" if _layouts(operation) else "its tensors are contiguous, and none is an image"


def _look_at_layout(operation: Operation, evidence: Evidence) -> Evidence:
    others = {
        name: operation.with_tensors(change, name) for name, change in _layouts(operation).items()
    }
    times = _interleaved(operation, {"as-is": operation.candidate, **others})
    return evidence.with_contrast("layout", times)


def _interleaved(operation: Operation, candidates: Mapping[str, Candidate]) -> dict[str, Timing]:
    measured = operation.time_all([*candidates.values()], cache="warm")
    return dict(zip(candidates, map(Timing.of, measured), strict=True))


def _has_numbers(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    if any(each.is_floating_point() for each in operation.tensors):
        return ""
    return "none of its tensors has a floating-point dtype"


def _look_at_data(operation: Operation, evidence: Evidence) -> Evidence:
    """Time the given values, zeros and random values.

    On a GPU, one after the other: interleaving would give them the same clock, which needs a tenth
    of a second to fall under load. On a CPU, interleaved and all on copies, since addresses also
    affect times.
    """
    candidates = {
        "as given": operation.candidate,
        "zeros": operation.with_tensors(_zeros, "zeros"),
        "random": operation.with_tensors(_random, "random"),
    }
    if not operation.on_gpu:
        candidates["as given"] = operation.with_tensors(copy_elsewhere, "as given")
        return evidence.with_contrast("data", _interleaved(operation, candidates))
    times = {
        name: operation.timing(candidate, cache="warm", warmup=0.2)
        for name, candidate in candidates.items()
    }
    return evidence.with_contrast("data", times)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return new_like(tensor, torch.Tensor.zero_) if tensor.is_floating_point() else tensor


def _random(tensor: torch.Tensor) -> torch.Tensor:
    """Return normally distributed values with the same mean and deviation (0 and 1 if constant)."""
    if not tensor.is_floating_point():
        return tensor
    numbers = tensor.detach().double().nan_to_num(0, 0, 0)
    mean, deviation = float(numbers.mean()), float(numbers.std(correction=0))
    usual = deviation > torch.finfo(tensor.dtype).tiny
    generator = torch.Generator(tensor.device).manual_seed(0)
    fill = functools.partial(
        torch.Tensor.normal_,
        mean=mean if usual else 0.0,
        std=deviation if usual else 1.0,
        generator=generator,
    )
    return new_like(tensor, fill)


def _lasting_load(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    account = account_of(evidence)
    if account.busy < _BUSY_FOR_A_CLOCK * account.seconds:
        share = account.busy / account.seconds
        return f"the GPU is busy for only {share:.0%} of the time, so there is no sustained load"
    if account.seconds > _LONGEST_REGIME:
        return f"a call takes {account.seconds:.1f} s, which is too long to reach a regime"
    return ""


def _look_at_regime(operation: Operation, evidence: Evidence) -> Evidence:
    times: dict[str, Timing] = {}
    for regime, timeout in (("burst", 3.0), ("sustained", 9.0)):
        measured = operation.time(
            regime=regime,
            cache="warm",
            warmup="steady",
            stop="interval",
            tolerance=0.01,
            budget=2 * BUDGET,
            timeout=timeout,
        )
        if measured.regime == regime:
            times[regime] = Timing.of(measured)
    return evidence.with_contrast("regime", times)


def _look_beside(operation: Operation, evidence: Evidence) -> Evidence:
    """Time next to convtime's own work on another stream, on bandwidth or multiprocessors."""
    times = {"alone": operation.timing(cache="warm", method="event")}
    for resource in neighbors.RESOURCES:
        with neighbors.in_a_stream(operation.device, resource):
            times[f"beside a stream that eats {resource}"] = operation.timing(
                cache="warm", method="event"
            )
    return evidence.with_contrast("beside", times)


def _look_beside_a_process(operation: Operation, evidence: Evidence) -> Evidence:
    times: dict[str, Timing] = {}
    for resource in neighbors.RESOURCES:
        with neighbors.in_a_process(operation.device, resource):
            times[f"beside a process that eats {resource}"] = operation.timing(
                cache="warm", method="event", exclusive=False
            )
    return evidence.with_contrast("beside", times)


def _launch_bound(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    account = account_of(evidence)
    return "" if account.idle > 0.1 * account.seconds else "the GPU does not wait for launches"


def _look_at_batches(operation: Operation, evidence: Evidence) -> Evidence:
    """Do the work of eight calls in one, with a first argument that is eight times as long."""
    first = next(
        (each for each in operation.candidate.args if isinstance(each, torch.Tensor)), None
    )
    if first is None or first.dim() == 0:
        raise ValueError("its first argument must be a tensor with dimensions")
    longer = torch.cat([first.detach()] * _BATCHED)
    args = tuple(longer if each is first else each for each in operation.candidate.args)
    batched = operation.candidate.but(name="batched", args=args)
    times = {
        "one call": operation.timing(method="sync", cache="warm"),
        f"{_BATCHED} in one": operation.timing(batched, method="sync", cache="warm"),
    }
    return evidence.with_contrast("batch", times)


def _host_tensors(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    on_host = _on_host(operation)
    if all(each.is_pinned() for each in on_host.tensors):
        return "none of its tensors is in pageable memory"
    return obstacle(on_host, backward=False)


def _on_host(operation: Operation) -> Original:
    return Original(operation.candidate, torch.device("cpu"), MOST_OBJECTS)


def _look_at_pinning(operation: Operation, evidence: Evidence) -> Evidence:
    pinned = _on_host(operation).with_tensors(lambda each: each.pin_memory()).but(name="pinned")
    times = {
        "as-is": operation.timing(method="sync", cache="warm"),
        "pinned": operation.timing(pinned, method="sync", cache="warm"),
    }
    return evidence.with_contrast("pinning", times)


def _several_threads(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    return "" if torch.get_num_threads() > 1 else "PyTorch uses one thread"


def _look_at_process(operation: Operation, evidence: Evidence) -> Evidence:
    times = {
        "here": operation.timing(cache="warm", budget=2 * BUDGET),
        "in a fresh process": process.time_in_fresh_one(operation),
    }
    return evidence.with_contrast("process", times)


def _alone(operation: Operation, evidence: Evidence) -> str:  # noqa: ARG001
    if evidence.work.other_launches:
        return "other threads also use the GPU, and their kernels would be counted"
    return ""


def _look_at_counters(operation: Operation, evidence: Evidence) -> Evidence:
    counted = counters(
        operation.candidate, metrics=(BYTES_READ, BYTES_WRITTEN), device=operation.device
    )
    known = {name: value for name, value in counted.totals.items() if value is not None}
    return dataclasses.replace(evidence, counters=known)


_LIKE_TENSORS = (_has_tensors, copies_in_other_memory)  # copies of which are in the same memory

CONTRASTS: tuple[Contrast, ...] = (
    Contrast("host", "the operating system's effects", 1.2, 6, (), host.look_at_host, "cpu"),
    Contrast(
        "neighbors", "work of known duration", 0.2, 0, (), neighbors.look_at_neighbors, "cuda"
    ),
    Contrast("launch", "the smallest operation", 0.1, 0, (), _look_at_launch, "cuda"),
    Contrast("trace", "a run under a profiler", 1.0, 15, (), _look_at_trace, "cuda"),
    Contrast("held", "a busy stream", 0.1, 1, (_without_setup,), _look_at_held, "cuda"),
    Contrast("serialized", "waits in the call", 0.2, 8, (_without_setup,), look_at_results, "cuda"),
    Contrast("cache", "the cache's contents", 0.7, 60, (), _look_at_cache, "cuda"),
    Contrast("operators", "a run under a profiler", 0.4, 6, (), host.look_at_operators, "cpu"),
    Contrast(
        "pages",
        "memory from the allocator",
        0.8,
        60,
        (),
        functools.partial(host.look_at_option, "pages", ("as-is", "retained")),
        "cpu",
    ),
    Contrast(
        "threads", "the thread count", 1.2, 60, (_several_threads,), host.look_at_threads, "cpu"
    ),
    Contrast(
        "cache",
        "the cache's contents",
        0.8,
        60,
        (),
        functools.partial(host.look_at_option, "cache", ("cold", "warm")),
        "cpu",
    ),
    Contrast(
        "layout", "the tensors' layout", 0.5, 30, (*_LIKE_TENSORS, _has_layouts), _look_at_layout
    ),
    Contrast("placement", "the tensors' addresses", 0.6, 80, (_has_tensors,), _look_at_placement),
    Contrast(
        "data",
        "the tensors' values",
        1.3,
        60,
        (*_LIKE_TENSORS, _has_numbers),
        _look_at_data,
        "cuda",
    ),
    Contrast(
        "data", "the tensors' values", 0.6, 60, (*_LIKE_TENSORS, _has_numbers), _look_at_data, "cpu"
    ),
    Contrast("denormals", "values near 0", 0.5, 60, (), host.look_at_denormals, "cpu"),
    Contrast("method", "events, and a graph", 0.7, 40, (_without_setup,), _look_at_method, "cuda"),
    Contrast(
        "pinning",
        "the host's memory",
        0.4,
        30,
        (_without_setup, _host_tensors),
        _look_at_pinning,
        "cuda",
    ),
    Contrast(
        "regime", "rest, and sustained load", 5.0, 60, (_lasting_load,), _look_at_regime, "cuda"
    ),
    Contrast("counters", "hardware counters", 1.5, 20, (_alone,), _look_at_counters, "cuda", 0.025),
    Contrast("places", "many addresses", 0.6, 40, (_has_tensors,), _look_at_random_places, "cuda"),
    Contrast(
        "rotation",
        "other tensors",
        0.5,
        30,
        (_without_setup, copies_in_other_memory),
        _look_at_rotation,
        "cuda",
    ),
    Contrast(
        "batch",
        "several calls in one",
        0.5,
        30,
        (_without_setup, *_LIKE_TENSORS, _launch_bound),
        _look_at_batches,
        "cuda",
    ),
    Contrast("beside", "concurrent work", 1.0, 60, (_without_setup,), _look_beside, "cuda"),
    Contrast(
        "neighbor process",
        "a concurrent process",
        14.0,
        20,
        (_without_setup,),
        _look_beside_a_process,
        "cuda",
    ),
    Contrast(
        "host, later",
        "the operating system's effects, later",
        0.4,
        3,
        (),
        host.look_at_host_again,
        "cpu",
    ),
    Contrast("process", "a fresh process", 8.0, 30, (process.obstacle,), _look_at_process),
)
