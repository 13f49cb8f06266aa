"""The CPU that calls are made on: its caches are flushed, and the calling thread is kept on one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from convtime.core.cpu import cache_bytes, check_pin
from convtime.timing.candidate import Candidate
from convtime.timing.neutral import without_modes

_FLUSH_OVER_CACHES = 2  # what is written, over what the caches hold


def flush_buffer() -> torch.Tensor | None:
    """What evicts all else from the caches when it is written; None where their size is unknown."""
    size = cache_bytes(os.sched_getaffinity(0))
    if size is None:
        return None
    with without_modes():
        return torch.zeros(_FLUSH_OVER_CACHES * size, dtype=torch.uint8, device="cpu")


def flushing(candidate: Candidate, buffer: torch.Tensor) -> Candidate:
    """The candidate with the buffer written before each call, after what it sets up itself."""

    def setup() -> None:
        if candidate.setup is not None:
            candidate.setup()
        with without_modes():
            buffer.add_(1)  # by all of torch's threads, so that each empties its own core's caches

    return candidate.but(setup=setup)


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """Keeps the calling thread on one CPU, or does nothing for None.

    Raises:
        ValueError: as check_pin.
    """
    check_pin(cpu)
    if cpu is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    # Threads take over the pin of the one that starts them: torch's must be there before.
    with without_modes():
        torch.zeros(1 << 20, dtype=torch.float32, device="cpu").add_(1)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
