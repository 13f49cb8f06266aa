"""Stop recordings for profilers: CUPTI supports one subscriber at a time in a process."""

from __future__ import annotations

import functools
from typing import Any

import torch.autograd.profiler

from convtime.core.load import _C


def make_way_for_profilers() -> None:
    """Make profilers that start through torch end convtime's recording first, on any thread.

    A profiler sets itself up in ``torch.autograd.profiler._prepare_profiler``. After that, kineto
    reports that it is active, and convtime starts no recording. Until then, CUPTI would deliver the
    profiler's records to convtime, and convtime's to the profiler. So that function is wrapped once
    per process; it otherwise behaves as before.
    """
    torch_profiler: Any = torch.autograd.profiler
    prepare = torch_profiler._prepare_profiler
    if getattr(prepare, "makes_way", False):
        return

    @functools.wraps(prepare)
    def prepare_alone(*args: Any, **kwargs: Any) -> Any:
        with _C.MakeWay():
            return prepare(*args, **kwargs)

    prepare_alone.makes_way = True  # type: ignore[attr-defined]
    torch_profiler._prepare_profiler = prepare_alone
