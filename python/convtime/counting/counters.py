"""Read hardware counters of one operation's kernels, in this process."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch

from convtime.core.load import _C
from convtime.counting.chip import GpuChip, telling_refusals
from convtime.counting.kernel_counters import Counters, CountersUnavailable, KernelCounters
from convtime.counting.metrics import DURATION, GROUPS, Wanted, describe, resolve, split_names
from convtime.device.provenance import provenance
from convtime.timing.candidate import Candidate, backward_of, clearing_gradients
from convtime.timing.options import Options
from convtime.timing.sampling.cache import flush_buffers, without_persisting_lines
from convtime.timing.sampling.measure import Place, find_place, on, turn_on
from convtime.timing.sampling.profilers import make_way_for_profilers
from convtime.timing.sampling.supervision import TimeLimit
from convtime.timing.signature import candidate_and_options, takes_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import CountOptions

#: Values of one launch, by metric.
Values: TypeAlias = dict[str, "float | None"]

_Launch: TypeAlias = tuple[str, tuple[int, int, int], tuple[int, int, int]]
_ADDING_UP = ("sum", "avg", "min", "max")


def adds_up(metric: str) -> bool:
    """Whether a metric's values are summed over launches: it is a count, not a rate or share."""
    return metric.rpartition(".")[2] in _ADDING_UP


def make_counters(
    counted: Mapping[str, Any],
    wanted: Wanted,
    described: Mapping[str, tuple[str, str, float]],
    **facts: Any,
) -> Counters:
    """Combine the counts by kernel and for the whole call.

    Args:
        counted: result of ``_C.count_kernels``.
        wanted: its metrics, in the same order.
        described: for each metric its description, unit, and the factor to that unit.
        facts: other fields of the result.
    """
    factors = [described[metric][2] for metric in wanted.metrics]
    repeats = [
        [dict(zip(wanted.metrics, _scaled(launch, factors), strict=True)) for launch in repeat]
        for repeat in counted["values"]
    ]
    samples = {
        metric: tuple(_total(metric, launches) for launches in repeats) for metric in wanted.metrics
    }
    return Counters(
        kernels=tuple(_kernels(_names(counted, len(repeats[0])), repeats, wanted.metrics)),
        totals={metric: _median(values) for metric, values in samples.items()},
        samples=samples,
        units={metric: unit for metric, (_, unit, _) in described.items()},
        descriptions={metric: words for metric, (words, _, _) in described.items()},
        left_out=wanted.left_out,
        kernels_reason=counted["unnamed"],
        passes=counted["passes"],
        **facts,
    )


def _scaled(values: Iterable[float | None], factors: Iterable[float]) -> list[float | None]:
    return [
        None if value is None else value * factor
        for value, factor in zip(values, factors, strict=True)
    ]


def _names(counted: Mapping[str, Any], count: int) -> list[_Launch]:
    """Return the launches in order; numbers if their names are unknown."""
    if counted["unnamed"]:
        nothing = (0, 0, 0)
        return [(f"kernel {place + 1}", nothing, nothing) for place in range(count)]
    return [(name, tuple(grid), tuple(block)) for name, grid, block in counted["launches"]]


def _kernels(
    names: Sequence[_Launch], repeats: Sequence[Sequence[Values]], metrics: Sequence[str]
) -> Iterable[KernelCounters]:
    places: dict[_Launch, list[int]] = {}
    for place, launch in enumerate(names):
        places.setdefault(launch, []).append(place)
    for (name, grid, block), own in places.items():
        values = {}
        for metric in metrics:
            of_repeats = []
            for launches in repeats:
                # Repeats may have different launches if kernels have no names.
                counted = [launches[place] for place in own if place < len(launches)]
                total = _total(metric, counted)
                share = len(counted) if adds_up(metric) else 1
                of_repeats.append(None if total is None else total / share)
            values[metric] = _median(of_repeats)
        yield KernelCounters(name, len(own), values, grid, block)


def _total(metric: str, launches: Sequence[Values]) -> float | None:
    """Combine several launches: the sum of a count, the mean over time of a rate or share."""
    values = [launch[metric] for launch in launches]
    if adds_up(metric):
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None
    seconds = [launch[DURATION] for launch in launches]
    weighted = [
        (value, weight)
        for value, weight in zip(values, seconds, strict=True)
        if value is not None and weight
    ]
    if not weighted:
        return None
    total = math.fsum(itertools.starmap(operator.mul, weighted))
    return total / math.fsum(weight for _, weight in weighted)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


Replay = Literal["call", "kernel"]
CounterCache = Literal["cold", "cold-clean", "warm"]

#: Metrics that are read by default.
DEFAULT_METRICS = tuple(GROUPS)


@takes_options(only=("cache", "device", "stream", "exclusive"), call=True)
def counters(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    metrics: str | Iterable[str] = DEFAULT_METRICS,
    repeats: int = 1,
    replay: Replay = "kernel",
    **options: Unpack[CountOptions],
) -> Counters:
    """Read the GPU's hardware counters for each kernel of ``fn(*args, **kwargs)``.

    ``fn`` is a callable, or a :class:`convtime.Candidate`, which has its arguments.

    Args:
        {call}
        metrics: one or several names of groups (``time``, ``dram``, ``l2``, ``sm``, ``occupancy``,
            ``tensor``), or of metrics as in NVIDIA's tools (``dram__bytes_read.sum``). ``all``
            reads every metric of this GPU, which takes many passes. See
            :func:`convtime.counter_names`.
        repeats: how many times everything is counted.
        replay: how the work is repeated, because the hardware counts only a few events at a time.
            With ``kernel``, CUPTI repeats each kernel for all metrics, and restores the memory that
            it wrote; a flush precedes only the first pass. With ``call``, ``fn`` is called again
            for each set of metrics that fits in one pass, after a flush each time. CUPTI still
            repeats kernels for a metric that needs several passes alone.
        {options}

    Raises:
        CountersUnavailable: if this machine, build or user has no access to the counters, or for a
            CUDA graph of several kernels, which CUPTI does not count one by one; the message says
            how to fix it.
        ValueError: for an unknown metric, with suggestions, or if an option is outside its range.
        TypeError: if ``fn`` is not callable.
        RuntimeError: while a profiler runs, or if CUDA or CUPTI fails. Exceptions of ``fn`` pass
            through.
    """
    asked = split_names(metrics)
    if replay not in get_args(Replay):
        raise ValueError(f"replay must be one of {str(get_args(Replay))[1:-1]}, got {replay!r}")
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ValueError(f"repeats must be a whole number, 1 or more, got {repeats!r}")
    candidate, chosen = candidate_and_options("counters", fn, args, options)
    if chosen.cache == "auto":
        chosen = dataclasses.replace(chosen, cache="cold")
    if chosen.cache not in get_args(CounterCache):
        raise ValueError(
            f"cache must be 'auto' or one of {str(get_args(CounterCache))[1:-1]} to read counters, "
            f"got {chosen.cache!r}"
        )
    place = gpu_place(candidate, chosen, "hardware counters need a GPU")
    before = provenance(place.device)
    with (
        turn_on(place, chosen, TimeLimit.of(None)) as turn,
        on(place.device, chosen.stream),
    ):
        make_way_for_profilers()
        chip = GpuChip(place.device)
        wanted = resolve(asked, chip)
        described = describe(wanted.metrics, chip)
        with without_persisting_lines(chosen.cache, place.gpus) as set_aside:
            counted = _count(candidate, wanted.metrics, replay, repeats, chosen, place)
    return make_counters(
        counted,
        wanted,
        described,
        name=candidate.name,
        method="range profiler",
        replay=replay,
        cache=chosen.cache,
        cache_reason=set_aside,
        device=str(place.device),
        exclusive=turn["exclusive"].used,
        exclusive_reason=turn["exclusive"].reason,
        provenance=before,
    )


def gpu_place(candidate: Candidate, options: Options, why: str) -> Place:
    """Return the device of a candidate's work.

    Args:
        candidate: candidate to call.
        options: options with the requested device.
        why: why it must be a GPU, for the error message.

    Raises:
        CountersUnavailable: if it is not a GPU.
    """
    if not _C.cuda_available():
        raise CountersUnavailable(f"{why}, and PyTorch finds no GPU that it can use")
    place = find_place([candidate], options.device)
    if not place.on_gpu:
        raise CountersUnavailable(f"{why}, and the work of {candidate.name!r} is on the CPU")
    return place


def _count(
    candidate: Candidate,
    metrics: Sequence[str],
    replay: Replay,
    repeats: int,
    options: Options,
    place: Place,
) -> dict[str, Any]:
    """Count the kernels; returns the result of ``_C.count_kernels``."""
    called = clearing_gradients(candidate)
    if candidate.backward:
        called = backward_of(called)
    buffers = flush_buffers(options.cache, [place.device])
    stream = torch.cuda.current_stream(place.device).cuda_stream
    with telling_refusals(place.device):
        return _C.count_kernels(
            call=(called.fn, called.args, dict(called.kwargs), called.before),
            metrics=list(metrics),
            replays_kernels=replay == "kernel",
            repeats=repeats,
            flush=[
                (
                    buffer.data_ptr(),
                    buffer.nbytes,
                    buffer.get_device(),
                    stream,
                    options.cache == "cold-clean",
                )
                for buffer in buffers
            ],
        )
