"""CPU of the calls: its caches, the pages of its memory, and the pin of the calling thread."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import torch

from convtime.core.cpu import cache_bytes, check_pin
from convtime.core.load import _C
from convtime.timing.candidate import Candidate
from convtime.timing.condition import Condition
from convtime.timing.neutral import without_modes
from convtime.timing.options import Pages

_PAGES_OF_AUTO = "so that times do not depend on earlier allocations of the process"
_FLUSH_OVER_CACHES = 2  # bytes written, relative to the size of the caches


def flush_buffer() -> torch.Tensor | None:
    """Return a buffer that fills the caches when written; None if their size is unknown."""
    size = cache_bytes(os.sched_getaffinity(0))
    if size is None:
        return None
    with without_modes():
        return torch.zeros(_FLUSH_OVER_CACHES * size, dtype=torch.uint8, device="cpu")


def flushing(candidate: Candidate, buffer: torch.Tensor) -> Candidate:
    """Return the candidate with a setup that also writes the buffer, after its own setup."""

    def setup() -> None:
        if candidate.before is not None:
            candidate.before()
        with without_modes():
            buffer.add_(1)  # in all of torch's threads, so that each flushes its core's caches

    return candidate.but(before=setup)


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """Pin the calling thread to one CPU; do nothing for None.

    Raises:
        ValueError: as check_pin.
    """
    check_pin(cpu)
    if cpu is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    # Threads inherit the pin of the thread that starts them, so start torch's threads first.
    with without_modes():
        torch.zeros(1 << 20, dtype=torch.float32, device="cpu").add_(1)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def governed_pages(asked: Pages, *, on_gpu: bool) -> Iterator[Callable[[], Condition[str]]]:
    """Make PyTorch allocate CPU memory in the requested pages, in all threads.

    Yields a function that returns the condition; call it after sampling. The previous
    allocator is restored however the block ends. Memory that is still in use is freed later by its
    own deleter; all other memory is freed here.
    """
    if on_gpu or asked == "as-is":
        reason = "the work is on a GPU" if asked == "auto" else ""
        yield lambda: Condition("as-is", asked, reason)
        return
    wanted = "retained" if asked == "auto" else asked
    with _C.CpuPages(wanted) as governed:

        def outcome() -> Condition[str]:
            if reason := governed.reason():
                return Condition("as-is", asked, reason)
            return Condition(wanted, asked, _PAGES_OF_AUTO if asked == "auto" else "")

        yield outcome
