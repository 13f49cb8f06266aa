"""Replacements for the timing functions of ``triton.testing``, with the same parameters.

Use them where an autotuner takes a function: ``@triton.autotune(..., do_bench=do_bench)``. They
return milliseconds, as triton does, and measure like ``time_op(..., quick=True)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import torch

from convtime.core.checks import check_one_of, is_finite, require
from convtime.timing.time_op import time_op

__all__ = ["do_bench", "do_bench_cudagraph"]

ReturnMode = Literal["min", "max", "mean", "median", "all"]

_QUICK_MS = 10.0


def do_bench(
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Iterable[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: ReturnMode = "mean",
) -> float | list[float]:
    """Time a function that launches GPU kernels, with a cold L2 cache before each call.

    The time is that of the kernels, without gaps between launches; if a call launches none, it is
    the host's time. Unlike ``triton.testing``'s function of this name, it takes about 10 ms instead
    of more than 100 ms, unless a call is longer.

    Args:
        fn: the function to time, without parameters.
        warmup: accepted for compatibility, in milliseconds; the warm-up is a single call, because
            kernel times need no more.
        rep: limit of the time for samples, in milliseconds. Above 10 ms it has no effect: use
            :func:`convtime.time_op` for more precise times.
        grad_to_none: tensors whose gradients are set to None before each call.
        quantiles: quantiles to return, each from 0 to 1.
        return_mode: what to return if ``quantiles`` is None: ``min``, ``max``, ``mean``, ``median``
            or ``all`` times.

    Returns:
        Milliseconds: a float, or a list for several quantiles and for ``all``.

    Raises:
        ValueError: for an unknown ``return_mode``, a quantile outside of 0 to 1, or a negative
            time.
        RuntimeError: as :func:`convtime.time_op`, which also says when exceptions of ``fn`` pass.
    """
    return _times_of(
        fn, warmup, rep, quantiles, return_mode, name="do_bench", grad_to_none=grad_to_none
    )


def do_bench_cudagraph(
    fn: Callable[[], object],
    rep: float = 20,
    grad_to_none: Iterable[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: ReturnMode = "mean",
) -> float | list[float]:
    """Time a function in CUDA graphs, with the L2 cache as the previous call left it.

    This takes longer than :func:`do_bench`, because the calls are captured first: 24 ms to 35 ms on
    an H100 for calls of up to 200 µs.

    Args:
        fn: the function to time, without parameters. A CUDA graph must be able to capture it.
        rep: limit of the time for samples, in milliseconds, as for :func:`do_bench`.
        grad_to_none: tensors whose gradients are set to None while a call is captured.
        quantiles: as for :func:`do_bench`.
        return_mode: as for :func:`do_bench`.

    Returns:
        Milliseconds: a float, or a list for several quantiles and for ``all``.

    Raises:
        ValueError: as :func:`do_bench`.
        RuntimeError: if a CUDA graph cannot capture the call, and as :func:`do_bench`.
    """
    gradients = [] if grad_to_none is None else list(grad_to_none)

    def call() -> object:
        for tensor in gradients:
            tensor.grad = None
        return fn()

    timed = call if gradients else fn
    return _times_of(
        timed,
        0,
        rep,
        quantiles,
        return_mode,
        name="do_bench_cudagraph",
        method="graph",
        cache="warm",
    )


def _times_of(
    fn: Callable[[], object],
    warmup: float,
    rep: float,
    quantiles: Sequence[float] | None,
    return_mode: ReturnMode,
    **options: Any,
) -> float | list[float]:
    check_one_of("return_mode", return_mode, get_args(ReturnMode))
    for what, value, zero_too in (("warmup", warmup, True), ("rep", rep, False)):
        if not (is_finite(value) and (value >= 0 if zero_too else value > 0)):
            kind = "0 or more" if zero_too else "more than 0"
            raise ValueError(f"{what} must be {kind} milliseconds, got {value!r}")
    requested = None if quantiles is None else [*quantiles]
    require(requested != [], "quantiles must contain at least one quantile or be None, got none")
    for each in requested or ():
        is_quantile = is_finite(each) and 0 <= float(each) <= 1
        require(is_quantile, f"quantiles must be from 0 to 1, got {each!r}")
    budget = min(float(rep), _QUICK_MS) * 1e-3
    measured = time_op(fn, quick=True, budget=budget, **options)
    if requested is not None:
        values = [1e3 * measured.quantile(float(quantile)) for quantile in requested]
        return values[0] if len(values) == 1 else values
    times = [1e3 * seconds for seconds in measured.seconds]
    if return_mode == "all":
        return times
    if return_mode == "median":
        return 1e3 * measured.median
    return {"min": min(times), "max": max(times), "mean": math.fsum(times) / len(times)}[
        return_mode
    ]
