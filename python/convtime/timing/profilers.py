"""Makes way for profilers: CUPTI records for one at a time in a process."""

from __future__ import annotations

import functools
from typing import Any

import torch.autograd.profiler

from convtime.core.load import _C


def make_way_for_profilers() -> None:
    """Has profilers that start through torch end a recording of ours first, on whatever thread.

    A profiler sets itself up in ``torch.autograd.profiler._prepare_profiler``. From there on kineto
    says that it is active, and no recording of ours begins; but until then, CUPTI would hand
    records of the profile to us, and ours to the profile. So that function is wrapped, once in a
    process, and does otherwise what it did.
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
