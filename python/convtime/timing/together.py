"""Measure calls in this process, or together with other ranks if they communicate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from convtime.core.load import _C
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.options import Options
from convtime.timing.sampling.measure import TimeLimit, measure

if TYPE_CHECKING:
    import torch.distributed as dist


def measure_together(
    candidates: Sequence[Candidate],
    options: Options,
    group: dist.ProcessGroup | None,
    limit: TimeLimit | None = None,
) -> list[Measurement]:
    """Time candidates in this process, or with all ranks of a group if it is given or needed.

    Without a group, every rank finds out in the first call that it communicates.
    """
    if group is None:
        with contextlib.suppress(_C.CollectiveRefused):
            return measure(candidates, options, limit=limit)
    # A room above, which only calls that communicate need.
    from convtime.distributed.measure import measure_in_group

    return measure_in_group(candidates, options, group)


@contextlib.contextmanager
def telling(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Tell the other ranks of a group if this rank does not begin to measure, because of an error.

    Does nothing without a group.
    """
    try:
        yield
    except Exception as error:
        if group is not None:
            from convtime.distributed.meeting import tell_of_error

            tell_of_error(group, error)
        raise
