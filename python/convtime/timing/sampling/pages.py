"""Memory pages of the tensors that calls on the CPU allocate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from convtime.core.load import _C
from convtime.timing.condition import Condition
from convtime.timing.options import Pages

_OF_AUTO = "so that times do not depend on earlier allocations of the process"


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
            reason = governed.reason()
            if reason:
                return Condition("as-is", asked, reason)
            return Condition(wanted, asked, _OF_AUTO if asked == "auto" else "")

        yield outcome
