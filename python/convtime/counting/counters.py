"""Read hardware counters of one operation's kernels, in this process."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from convtime.core.checks import check_one_of, check_whole
from convtime.core.load import _C
from convtime.counting.chip import GpuChip, telling_refusals
from convtime.counting.metrics import DURATION, GROUPS, describe, resolve, split_names
from convtime.counting.results import Counters, CountersUnavailable, KernelCounters
from convtime.device.provenance import provenance
from convtime.timing.candidate import (
    Candidate,
    candidate_and_options,
    timed_part,
    with_keywords,
)
from convtime.timing.options import CounterOptions, Options
from convtime.timing.sampling.calls import (
    flush_arguments,
    flush_buffers,
    make_way_for_profilers,
    without_persisting_lines,
)
from convtime.timing.sampling.measure import TimeLimit, WorkDevices, find_devices, on, take_turn

if TYPE_CHECKING:
    from typing_extensions import Unpack


#: Values of several launches by metric; NaN where the hardware has no value.
_Launches: TypeAlias = Mapping[str, "np.ndarray[Any, np.dtype[np.float64]]"]

_ADDING_UP = ("sum", "avg", "min", "max")


def adds_up(metric: str) -> bool:
    """Whether a metric's values are summed over launches: it is a count, not a rate or share."""
    return metric.rpartition(".")[2] in _ADDING_UP


def make_counters(
    counted: Mapping[str, Any], described: Mapping[str, tuple[str, str, float]], **facts: Any
) -> Counters:
    """Combine the counts by kernel and for the whole call.

    Args:
        counted: result of ``_C.count_kernels``.
        described: for each metric in the same order, its description, unit, and the factor to that
            unit.
        facts: other fields of the result.
    """
    repeats: list[_Launches] = []
    for launches in counted["values"]:
        columns = np.array(launches, dtype=float).reshape(-1, len(described)).T
        factors = {metric: factor for metric, (_, _, factor) in described.items()}
        repeats.append({m: factors[m] * values for m, values in zip(factors, columns, strict=True)})
    samples = {metric: [_total(metric, each) for each in repeats] for metric in described}
    return Counters(
        kernels=tuple(_kernels(counted, repeats)),
        totals={metric: _median(values) for metric, values in samples.items()},
        samples={
            metric: tuple(None if math.isnan(value) else value for value in values)
            for metric, values in samples.items()
        },
        units={metric: unit for metric, (_, unit, _) in described.items()},
        descriptions={metric: description for metric, (description, _, _) in described.items()},
        kernels_reason=counted["unnamed"],
        passes=counted["passes"],
        **facts,
    )


def _kernels(counted: Mapping[str, Any], repeats: Sequence[_Launches]) -> Iterator[KernelCounters]:
    launches = [(name, tuple(grid), tuple(block)) for name, grid, block in counted["launches"]]
    if counted["unnamed"]:
        count = len(counted["values"][0])
        launches = [(f"kernel {number}", (0, 0, 0), (0, 0, 0)) for number in range(1, count + 1)]
    alike: dict[Any, list[int]] = collections.defaultdict(list)
    for index, launch in enumerate(launches):
        alike[launch].append(index)
    for (name, grid, block), numbers in alike.items():
        # Repeats may have different launches if kernels have no names.
        own = [
            {m: column[[n for n in numbers if n < column.size]] for m, column in each.items()}
            for each in repeats
        ]
        values = {metric: _median([_mean(metric, each) for each in own]) for metric in repeats[0]}
        yield KernelCounters(name, len(numbers), values, grid, block)


def _total(metric: str, launches: _Launches) -> float:
    """Combine several launches: the sum of a count, the mean over time of a rate or share."""
    values, seconds = launches[metric], launches[DURATION]
    if adds_up(metric):
        return float(values.sum()) if values.size else math.nan
    known = ~np.isnan(values) & (seconds > 0)
    return float(np.average(values[known], weights=seconds[known])) if known.any() else math.nan


def _mean(metric: str, launches: _Launches) -> float:
    """Return the value per launch."""
    return _total(metric, launches) / (max(1, launches[metric].size) if adds_up(metric) else 1)


def _median(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else None


Replay = Literal["call", "kernel"]
CounterCache = Literal["cold", "cold-clean", "warm"]

#: Metrics that are read by default.
DEFAULT_METRICS = tuple(GROUPS)


@with_keywords(CounterOptions)
def counters(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    metrics: str | Iterable[str] = DEFAULT_METRICS,
    repeats: int = 1,
    replay: Replay = "kernel",
    **options: Unpack[CounterOptions],
) -> Counters:
    """Read the GPU's hardware counters for each kernel of ``fn(*args, **kwargs)``.

    ``fn`` is a callable, or a :class:`convtime.Candidate`, which has its arguments.

    Args:
        fn: callable to time. Its result is dropped after the timed region; it may return None.
        args: positional arguments of ``fn``.
        kwargs: keyword arguments of ``fn``.
        name: name of the result. Default: the name of the function.
        before: called without arguments before each call, outside the timed region and before the
            cache flush; its GPU work is not timed either.
        grad_to_none: tensors whose ``grad`` is set to None before each call, outside the timed
            region, so that a backward pass in ``fn`` writes gradients instead of adding to them.
        backward: whether to time the backward pass of ``fn``'s result instead, with random
            gradients. The forward pass runs before each call, outside the timed region. Gradients
            are set to None first; afterwards they are those of the last call.
        flops: floating-point operations of a call. They are compared with the rate that the device
            reaches, which is measured once, after the timing and beyond any ``timeout`` (see
            ``ceilings``).
        nbytes: bytes that a call must move, compared in the same way.
        metrics: one or several names of groups (``time``, ``dram``, ``l2``, ``sm``, ``occupancy``,
            ``tensor``), of metrics as in NVIDIA's tools (``dram__bytes_read.sum``), or of nvprof
            metrics (``dram_write_transactions``). ``all`` reads every metric of this GPU, which
            takes many passes. See :func:`convtime.counter_names`.
        repeats: how many times everything is counted.
        replay: how the work is repeated, because the hardware counts only a few events at a time.
            With ``kernel``, CUPTI repeats each kernel for all metrics, and restores the memory that
            it wrote; a flush precedes only the first pass. With ``call``, ``fn`` is called again
            for each set of metrics that fits in one pass, after a flush each time. CUPTI still
            repeats kernels for a metric that needs several passes alone.
        cache: ``cold`` overwrites the cache before each call, outside the timed region: the L2
            cache of a GPU, or all caches of the CPU, which takes milliseconds. The call then also
            causes the write-back of that data, as after a kernel that writes; ``cold-clean`` reads
            other data into a GPU's L2 cache instead, so that nothing needs to be written back, as
            after a kernel that reads; ``rotate`` (GPU only) gives each call different copies of its
            tensors, enough copies that each is evicted before it is reused; ``warm`` leaves the
            cache in the state after the previous call; ``auto`` is cold on a GPU, and leaves a
            CPU's cache alone.
        device: device of the work. Default: the GPU of the first CUDA tensor found in arguments,
            closure or module parameters; the CPU if only CPU tensors are found; the current GPU (if
            there is one) if no tensor is found.
        stream: stream that is current during the calls. Default: the current stream.
        exclusive: whether processes and threads of this user take turns on a GPU: each waits until
            the GPU is free, for at most a minute, and blocks the others while it times. The result
            says how long it waited, and why if it did not have the GPU to itself.

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
    check_one_of("replay", replay, get_args(Replay))
    repeats = check_whole("repeats", repeats, 1)
    candidate, chosen = candidate_and_options("counters", CounterOptions, fn, args, options)
    if chosen.cache == "auto":
        chosen = dataclasses.replace(chosen, cache="cold")
    check_one_of(
        "cache", chosen.cache, get_args(CounterCache), "; 'auto' is 'cold' when counters are read"
    )
    devices = gpu_of_work(candidate, chosen, "hardware counters need a GPU")
    before = provenance(devices.device)
    with (
        take_turn(devices, chosen, TimeLimit(None)) as turn,
        on(devices.device, chosen.stream),
    ):
        make_way_for_profilers()
        chip = GpuChip(devices.device)
        wanted = resolve(asked, chip)
        described = describe(wanted.metrics, chip)
        with without_persisting_lines(chosen.cache, devices.gpus) as set_aside:
            counted = _count(candidate, wanted.metrics, replay, repeats, chosen, devices)
    return make_counters(
        counted,
        described,
        name=candidate.name,
        translated=wanted.translated,
        left_out=wanted.left_out,
        method="range profiler",
        replay=replay,
        cache=chosen.cache,
        cache_reason=set_aside,
        device=str(devices.device),
        exclusive=turn["exclusive"].used,
        exclusive_reason=turn["exclusive"].reason,
        provenance=before,
    )


def gpu_of_work(candidate: Candidate, options: Options, why: str) -> WorkDevices:
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
    devices = find_devices([candidate], options.device)
    if not devices.on_gpu:
        raise CountersUnavailable(f"{why}, and the work of {candidate.name!r} is on the CPU")
    return devices


def _count(
    candidate: Candidate,
    metrics: Sequence[str],
    replay: Replay,
    repeats: int,
    options: Options,
    devices: WorkDevices,
) -> dict[str, Any]:
    """Count the kernels; returns the result of ``_C.count_kernels``."""
    called = timed_part(candidate)
    buffers = flush_buffers(options.cache, [devices.device])
    with telling_refusals(devices.device):
        return _C.count_kernels(
            call=(called.fn, called.args, dict(called.kwargs), called.before),
            metrics=list(metrics),
            replays_kernels=replay == "kernel",
            repeats=repeats,
            flush=flush_arguments(buffers, options.cache),
        )
