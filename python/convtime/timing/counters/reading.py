"""Reads hardware counters of one operation's kernels, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch

from convtime.core.load import _C
from convtime.core.provenance import provenance
from convtime.results.counters import Counters, CountersUnavailable
from convtime.timing.cache import flush_buffers, without_persisting_lines
from convtime.timing.candidate import Candidate, backward_of, clearing_gradients
from convtime.timing.counters.chip import GpuChip, telling_refusals
from convtime.timing.counters.groups import GROUPS
from convtime.timing.counters.names import describe, resolve, split_names
from convtime.timing.counters.summing import make_counters
from convtime.timing.options import Options
from convtime.timing.profilers import make_way_for_profilers
from convtime.timing.sampling import Place, find_place, on, turn_on
from convtime.timing.supervision import TimeLimit

Replay = Literal["call", "kernel"]
CounterCache = Literal["cold", "cold-clean", "warm"]

#: What is read unless metrics are named.
DEFAULT_METRICS = tuple(GROUPS)


def counters(
    fn: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    metrics: str | Iterable[str] = DEFAULT_METRICS,
    name: str | None = None,
    setup: Callable[[], object] | None = None,
    backward: bool = False,
    repeats: int = 1,
    replay: Replay = "kernel",
    cache: CounterCache = "cold",
    device: torch.device | str | int | None = None,
    exclusive: bool = True,
) -> Counters:
    """Reads the GPU's hardware counters for each kernel of ``fn(*args, **kwargs)``.

    Args:
        fn: what is counted. Its result is dropped.
        args: its positional arguments.
        kwargs: its keyword arguments.
        metrics: names of groups (``time``, ``dram``, ``l2``, ``sm``, ``occupancy``, ``tensor``), of
            metrics as NVIDIA's tools have them (``dram__bytes_read.sum``), or of nvprof's
            (``dram_write_transactions``), one or several; ``all`` for every metric of this GPU,
            which takes many passes. See :func:`convtime.counter_names`.
        name: what the result is called; the function's own name unless given.
        setup: called without arguments before each call, before the cache is flushed; what it
            issues to the GPU is not counted.
        backward: counts the backward pass of ``fn``'s result instead.
        repeats: how many times everything is counted.
        replay: the hardware counts a few events at a time, so that what is counted is repeated:
            ``kernel`` has CUPTI repeat each kernel for all metrics, and restore what it wrote;
            ``call`` calls ``fn`` anew for as many metrics as one pass counts, after a flush each
            time. What takes several passes by itself is repeated by CUPTI there, too.
        cache: what each call finds in the L2 cache, as ``time_op``'s; where CUPTI repeats a
            kernel, the flush comes before the first pass alone.
        device: where the work runs, as ``time_op``'s.
        exclusive: as ``time_op``'s.

    Raises:
        CountersUnavailable: where this machine, build or user has no access to the counters, and
            for a CUDA graph of several kernels, which CUPTI does not count one by one; the text
            says what to do.
        ValueError: for a metric that there is not, with the nearest ones, and for an option outside
            of its range.
        TypeError: for something that is not callable.
        RuntimeError: while a profiler runs, and for a failure of CUDA or CUPTI. Whatever ``fn``
            raises passes through.
    """
    candidate = Candidate(fn, *args, kwargs=kwargs, name=name, setup=setup, backward=backward)
    asked = split_names(metrics)
    for what, value, allowed in (
        ("replay", replay, get_args(Replay)),
        ("cache", cache, get_args(CounterCache)),
    ):
        if value not in allowed:
            raise ValueError(f"{what} must be one of {str(allowed)[1:-1]}, got {value!r}")
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ValueError(f"repeats must be a whole number, 1 or more, got {repeats!r}")
    options = Options(cache=cache, device=device, exclusive=exclusive)
    place = gpu_place(candidate, options, "hardware counters are a GPU's")
    before = provenance(place.device)
    with turn_on(place, options, TimeLimit.of(None)) as turn, on(place.device, None):
        make_way_for_profilers()
        chip = GpuChip(place.device)
        wanted = resolve(asked, chip)
        described = describe(wanted.metrics, chip)
        with without_persisting_lines(cache, place.gpus) as set_aside:
            counted = _count(candidate, wanted.metrics, replay, repeats, options, place)
    return make_counters(
        counted,
        wanted,
        described,
        name=candidate.name,
        method="range profiler",
        replay=replay,
        cache=cache,
        cache_reason=set_aside,
        device=str(place.device),
        exclusive=turn["exclusive"],
        exclusive_reason=turn["exclusive_reason"],
        provenance=before,
    )


def gpu_place(candidate: Candidate, options: Options, why: str) -> Place:
    """Where a candidate's work runs.

    Args:
        candidate: what is called.
        options: with the device that is asked for.
        why: that has to be a GPU, for the error.

    Raises:
        CountersUnavailable: where it is none.
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
    """What ``_C.count_kernels`` gives."""
    called = clearing_gradients(candidate)
    if candidate.backward:
        called = backward_of(called)
    buffers = flush_buffers(options.cache, [place.device])
    stream = torch.cuda.current_stream(place.device).cuda_stream
    with telling_refusals(place.device):
        return _C.count_kernels(
            call=(called.fn, called.args, dict(called.kwargs), called.setup),
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
