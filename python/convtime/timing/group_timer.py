"""The interface through which timings measure with all ranks of a process group.

The room ``distributed`` implements it, and ``convtime/__init__.py`` says how it is loaded: only
calls that communicate need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch.distributed as dist

    from convtime.timing.candidate import Candidate
    from convtime.timing.measurement import Measurement
    from convtime.timing.options import Options


class GroupTimer(Protocol):
    """Measures with all ranks of a process group."""

    def measure_in_group(
        self,
        candidates: Sequence[Candidate],
        options: Options,
        group: dist.ProcessGroup | None,
        /,
    ) -> list[Measurement]:
        """Time candidates with all ranks of a group, or of the group that their calls use."""

    def report_error(self, group: dist.ProcessGroup, error: Exception, /) -> None:
        """Tell the other ranks of a group that this rank does not measure, because of an error."""


#: Returns the implementation.
load: Callable[[], GroupTimer]
