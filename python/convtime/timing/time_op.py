"""Time one operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from convtime.timing.candidate import Candidate
from convtime.timing.ceilings import with_rates
from convtime.timing.measurement import Measurement
from convtime.timing.options import Stop, make_options, takes_options
from convtime.timing.sampling.measure import measure
from convtime.timing.sampling.supervision import watched

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import SharedOptions


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
    """Time ``fn(*args, **kwargs)`` with calls from C++ until its median is precise enough.

    Args:
        fn: callable to time. Its result is dropped after the timed region; it may return None.
        args: positional arguments of ``fn``.
        kwargs: keyword arguments of ``fn``.
        name: name of the result. Default: the name of the function.
        setup: called without arguments before each call, outside the timed region and before the
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
        {options}

    Returns:
        The samples in seconds, with method, conditions and provenance.

    Raises:
        TypeError: if ``fn`` is not callable, or for an unknown option.
        ValueError: if an option is outside its range, options contradict each other, a GPU method
            or ``clocks="lock"`` is used for work on the CPU, or the thread may not run on the CPU
            in ``pin``.
        TimeoutError: if ``timeout`` passes before the first sample.
        PermissionError: if ``clocks="lock"`` is used and this user may not lock clocks; the message
            says which command to run.
        RuntimeError: if CUDA fails, ``method="kernel"`` is unavailable, or ``method="graph"``
            cannot capture the call. Exceptions of ``fn`` pass through.
    """
    candidate = Candidate(
        fn,
        *args,
        kwargs=kwargs,
        name=name,
        setup=setup,
        backward=backward,
        grad_to_none=grad_to_none,
        flops=flops,
        nbytes=nbytes,
    )
    chosen = make_options("time_op", {"stop": stop, **options}, but=("margin",))
    if chosen.stop == "verdict":
        raise ValueError("stop='verdict' needs something to compare with; use convtime.compare")
    with watched(chosen) as shown:
        (measured,) = measure([candidate], shown)
    return with_rates(candidate, measured, chosen)
