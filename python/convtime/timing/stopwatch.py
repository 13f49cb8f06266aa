"""What users call: one operation timed, or several against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from convtime.core.errors import first_line
from convtime.results.ceilings import Ceilings
from convtime.results.comparison import Comparison
from convtime.results.measurement import Measurement
from convtime.timing.candidate import Candidate, clearing_gradients, name_of
from convtime.timing.ceilings import ceilings
from convtime.timing.options import (
    Options,
    Regime,
    Stop,
    is_finite,
    make_options,
    takes_options,
)
from convtime.timing.sampling import measure
from convtime.timing.supervision import TimeLimit

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import SharedOptions

#: What ``regime="both"`` times in, the one that leaves the GPU cool first.
_BOTH: Final[tuple[Regime, ...]] = ("burst", "sustained")


@takes_options("margin")
def time_op(
    fn: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    setup: Callable[[], object] | None = None,
    grad_to_none: Iterable[torch.Tensor] | None = None,
    backward: bool = False,
    flops: float | None = None,
    nbytes: float | None = None,
    stop: Stop = "interval",
    **options: Unpack[SharedOptions],
) -> Measurement:
    """Times ``fn(*args, **kwargs)``, called from C++ until its median is known well enough.

    Args:
        fn: what is timed. Its result is dropped after the timed region; it may return None.
        args: its positional arguments.
        kwargs: its keyword arguments.
        name: what the result is called; the function's own name unless given.
        setup: called without arguments before each call, outside of the timed region and before the
            cache is flushed; what it issues to the GPU is not timed either.
        grad_to_none: tensors whose ``grad`` is set to None before each call, outside of the timed
            region, so that a backward pass in ``fn`` writes gradients instead of adding to them.
        backward: times the backward pass of ``fn``'s result instead, with random gradients; the
            forward pass runs before each call, outside of the timed region. Gradients are set to
            None first, and are the last call's when it is over.
        flops: floating-point operations of a call, to be set against what this device reaches,
            which is measured afterwards, once (see ``ceilings``), and beyond any ``timeout``.
        nbytes: bytes that a call has to move, likewise.
        {options}

    Returns:
        The samples in seconds, with method, conditions and provenance; for ``regime="both"`` those
        of the burst, and the others as its ``sustained``.

    Raises:
        TypeError: if ``fn`` is not callable, and for an option that there is not.
        ValueError: for an option outside of its range, options that contradict each other, a GPU
            method or ``clocks="lock"`` for work on the CPU, or a CPU to ``pin`` to that the thread
            may not run on.
        TimeoutError: where ``timeout`` passes before there is a sample.
        PermissionError: for ``clocks="lock"`` where this user may not lock them; it says what to
            run.
        RuntimeError: for a failure of CUDA, where ``method="kernel"`` cannot be had, or where
            ``method="graph"`` cannot capture the call. Whatever ``fn`` raises passes through.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a mapping of names to values, got {kwargs!r}")
    candidate = Candidate(name or name_of(fn), fn, args, kwargs or {}, setup)
    chosen = make_options("time_op", {"stop": stop, **options}, but=("margin",))
    if chosen.stop == "verdict":
        raise ValueError("stop='verdict' needs something to compare with; use convtime.compare")
    for what, value in (("flops", flops), ("nbytes", nbytes)):
        if value is not None and not (is_finite(value) and value > 0):
            raise ValueError(f"{what} must be a positive number, got {value!r}")
    if grad_to_none is not None:
        if chosen.cache == "rotate":
            raise ValueError(
                "grad_to_none names tensors that cache='rotate' copies; use backward=True, or "
                "cache='cold'"
            )
        candidate = clearing_gradients(candidate, grad_to_none)
    measured = _measure_one(candidate, chosen, backward=backward)
    if flops is None and nbytes is None:
        return measured
    # Afterwards, since a large copy and a large matmul heat the device.
    reached, why_not = _ceilings_of(torch.device(measured.device), chosen.exclusive)
    rates: dict[str, Any] = {
        "flops": None if flops is None else float(flops),
        "nbytes": None if nbytes is None else float(nbytes),
        "ceilings": reached,
        "ceilings_reason": why_not,
    }
    if measured.sustained is not None:
        rates["sustained"] = dataclasses.replace(measured.sustained, **rates)
    return dataclasses.replace(measured, **rates)


def _measure_one(candidate: Candidate, options: Options, *, backward: bool) -> Measurement:
    if options.regime != "both":
        return measure([candidate], options, backward=backward)[0]
    limit = TimeLimit.of(options.timeout)
    burst, sustained = (
        measure(
            [candidate],
            dataclasses.replace(options, regime=regime),
            backward=backward,
            limit=limit,
        )[0]
        for regime in _BOTH
    )
    return dataclasses.replace(burst, sustained=sustained)


def _ceilings_of(device: torch.device, exclusive: bool) -> tuple[Ceilings | None, str]:
    """The ceilings, or why there are none, which is no reason to lose what was measured."""
    try:
        return ceilings(device, exclusive=exclusive), ""
    except RuntimeError as error:  # of a GPU that is full, for one
        return None, f"they could not be measured on {device} ({first_line(error)})"


@takes_options()
def compare(
    candidates: Mapping[str, Callable[[], object]],
    *,
    stop: Stop | None = None,
    margin: float = 0.01,
    **options: Unpack[SharedOptions],
) -> Comparison:
    """Times several callables interleaved, so that whatever drifts drifts for all of them alike.

    Each round calls every candidate once, in random order; ``time_op`` is the case of one
    candidate. ``budget`` is for the whole comparison. Unless given, ``stop`` is ``verdict`` for
    several candidates, and ``interval`` for one.

    Args:
        candidates: callables without arguments, by name; the first one is the baseline.
        {options}

    Raises:
        ValueError: for no candidates, a margin that is not positive, and as ``time_op``.
        TypeError: for something that is not callable, or an option that there is not.
        TimeoutError: where ``timeout`` passes before there is a sample.
    """
    if not isinstance(candidates, Mapping):
        raise TypeError(
            f"compare takes callables by name, as a mapping, got {type(candidates).__name__}"
        )
    if not candidates:
        raise ValueError("there must be at least one candidate to compare, got none")
    if stop is None:
        stop = "verdict" if len(candidates) > 1 else "interval"
    elif stop == "verdict" and len(candidates) == 1:
        raise ValueError(f"stop='verdict' needs several candidates, got {list(candidates)} alone")
    chosen = make_options("compare", {"stop": stop, "margin": margin, **options})
    if chosen.regime == "both":
        raise ValueError(
            "compare times its candidates in one regime, got regime='both'; call it with "
            "regime='burst' and with regime='sustained'"
        )
    measurements = measure([Candidate(name, fn) for name, fn in candidates.items()], chosen)
    return Comparison(dict(zip(candidates, measurements, strict=True)), float(margin))
