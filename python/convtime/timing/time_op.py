"""Time one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from convtime.timing.candidate import Candidate
from convtime.timing.ceilings import with_rates
from convtime.timing.measurement import Measurement
from convtime.timing.process_groups import measure_here_or_in_group, reporting_errors
from convtime.timing.sampling.measure import watched
from convtime.timing.signature import candidate_and_options, takes_options

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack

    from convtime.timing.options import TimeOptions


@takes_options("margin", call=True)
def time_op(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    group: dist.ProcessGroup | None = None,
    **options: Unpack[TimeOptions],
) -> Measurement:
    """Time ``fn(*args, **kwargs)`` with calls from C++ until its median is precise enough.

    ``fn`` is a callable, or a :class:`convtime.Candidate`, which has its arguments.

    A call that communicates with other ranks of torch.distributed is timed by all ranks together:
    each of them makes the same call of this function. See docs/guides/many-gpus.md.

    Args:
        {call}
        group: process group whose ranks time the call together. Default: the group of the
            operations in the call, if it communicates.
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
            cannot capture the call. Exceptions of ``fn`` pass through. In a group, another rank
            raised an exception, ended, hung or fell behind.
    """
    with reporting_errors(group):
        candidate, chosen = candidate_and_options("time_op", fn, args, options)
        if chosen.stop == "verdict":
            raise ValueError("stop='verdict' needs something to compare with; use convtime.compare")
    with watched(chosen) as shown:
        (measured,) = measure_here_or_in_group([candidate], shown, group)
    if candidate.flops is None and candidate.nbytes is None:
        return measured
    return with_rates(candidate, measured, chosen)
