"""Reads hardware counters of one operation's kernels, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import torch

from convtime.core.load import _C
from convtime.results.counters import Counters, CountersUnavailable
from convtime.timing.candidate import Candidate

Replay = Literal["call", "kernel"]
CounterCache = Literal["cold", "cold-clean", "warm"]

#: What is read unless metrics are named.
DEFAULT_METRICS = ("time", "dram", "l2", "sm", "occupancy", "tensor")


def counters(
    fn: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    metrics: str | Iterable[str] = DEFAULT_METRICS,  # noqa: ARG001
    name: str | None = None,
    setup: Callable[[], object] | None = None,
    backward: bool = False,
    repeats: int = 1,
    replay: Replay = "call",
    cache: CounterCache = "cold",
    device: torch.device | str | int | None = None,  # noqa: ARG001
    exclusive: bool = True,  # noqa: ARG001
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
            ``call`` calls ``fn`` anew for each pass, behind a flush each time; ``kernel`` has CUPTI
            repeat each kernel, and restore what it wrote, where calls do not launch the same.
        cache: what each call finds in the L2 cache, as ``time_op``'s; with ``replay="kernel"``,
            the flush comes before the first pass alone.
        device: where the work runs, as ``time_op``'s.
        exclusive: as ``time_op``'s.

    Raises:
        CountersUnavailable: where this machine, build or user has no access to the counters; the
            text says what to set.
        ValueError: for a metric that there is not, with the nearest ones, and for an option outside
            of its range.
        TypeError: for something that is not callable.
        RuntimeError: while a profiler runs, and for a failure of CUDA or CUPTI. Whatever ``fn``
            raises passes through.
    """
    Candidate(fn, *args, kwargs=kwargs, name=name, setup=setup, backward=backward)
    for what, value, allowed in (
        ("replay", replay, get_args(Replay)),
        ("cache", cache, get_args(CounterCache)),
    ):
        if value not in allowed:
            raise ValueError(f"{what} must be one of {str(allowed)[1:-1]}, got {value!r}")
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ValueError(f"repeats must be a whole number, 1 or more, got {repeats!r}")
    if not _C.cuda_available():
        raise CountersUnavailable(
            "hardware counters are a GPU's, and PyTorch finds no GPU that it can use"
        )
    raise CountersUnavailable("this build of convtime does not read hardware counters yet")
