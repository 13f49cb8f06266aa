"""Read hardware counters of one operation's kernels, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch

from convtime.core.load import _C
from convtime.core.provenance import provenance
from convtime.counting.chip import GpuChip, telling_refusals
from convtime.counting.groups import GROUPS
from convtime.counting.kernel_counters import Counters, CountersUnavailable
from convtime.counting.names import describe, resolve, split_names
from convtime.counting.summing import make_counters
from convtime.timing.candidate import Candidate, backward_of, clearing_gradients
from convtime.timing.options import Options
from convtime.timing.sampling.cache import flush_buffers, without_persisting_lines
from convtime.timing.sampling.measure import Place, find_place, on, turn_on
from convtime.timing.sampling.profilers import make_way_for_profilers
from convtime.timing.sampling.supervision import TimeLimit

Replay = Literal["call", "kernel"]
CounterCache = Literal["cold", "cold-clean", "warm"]

#: Metrics that are read by default.
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
    """Read the GPU's hardware counters for each kernel of ``fn(*args, **kwargs)``.

    Args:
        fn: callable whose kernels are counted. Its result is dropped.
        args: positional arguments of ``fn``.
        kwargs: keyword arguments of ``fn``.
        metrics: one or several names of groups (``time``, ``dram``, ``l2``, ``sm``, ``occupancy``,
            ``tensor``), of metrics as in NVIDIA's tools (``dram__bytes_read.sum``), or of nvprof
            metrics (``dram_write_transactions``). ``all`` reads every metric of this GPU, which
            takes many passes. See :func:`convtime.counter_names`.
        name: name of the result. Default: the name of the function.
        setup: called without arguments before each call, before the cache flush; its GPU work is
            not counted.
        backward: whether to count the backward pass of ``fn``'s result instead.
        repeats: how many times everything is counted.
        replay: how the work is repeated, because the hardware counts only a few events at a time.
            With ``kernel``, CUPTI repeats each kernel for all metrics, and restores the memory that
            it wrote. With ``call``, ``fn`` is called again for each set of metrics that fits in one
            pass, after a flush each time. CUPTI still repeats kernels for a metric that needs
            several passes alone.
        cache: state of the L2 cache at each call, as in ``time_op``. If CUPTI repeats a kernel, the
            flush precedes only the first pass.
        device: device of the work, as in ``time_op``.
        exclusive: as in ``time_op``.

    Raises:
        CountersUnavailable: if this machine, build or user has no access to the counters, or for a
            CUDA graph of several kernels, which CUPTI does not count one by one; the message says
            how to fix it.
        ValueError: for an unknown metric, with suggestions, or if an option is outside its range.
        TypeError: if ``fn`` is not callable.
        RuntimeError: while a profiler runs, or if CUDA or CUPTI fails. Exceptions of ``fn`` pass
            through.
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
    place = gpu_place(candidate, options, "hardware counters need a GPU")
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
