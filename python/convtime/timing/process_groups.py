"""Measure calls in this process, or with all ranks of a process group if they communicate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from convtime.core.load import _C
from convtime.timing import group_timer
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.options import Options
from convtime.timing.sampling.measure import TimeLimit, measure

if TYPE_CHECKING:
    import torch.distributed as dist


def measure_here_or_in_group(
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
    return group_timer.load().measure_in_group(candidates, options, group)


@contextlib.contextmanager
def reporting_errors(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Tell the other ranks of a group if this rank does not begin to measure, because of an error.

    Does nothing without a group.
    """
    try:
        yield
    except Exception as error:
        if group is not None:
            group_timer.load().report_error(group, error)
        raise
