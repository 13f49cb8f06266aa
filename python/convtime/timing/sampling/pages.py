"""Memory pages of the tensors that calls on the CPU allocate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from convtime.core.load import _C
from convtime.timing.options import Pages

_OF_AUTO = "so that times do not depend on earlier allocations of the process"


@contextlib.contextmanager
def governed_pages(asked: Pages, *, on_gpu: bool) -> Iterator[Callable[[], dict[str, str]]]:
    """Make PyTorch allocate CPU memory in the requested pages, in all threads.

    Yields a function that returns the page fields of a Measurement; call it after sampling. The
    previous allocator is restored however the block ends. Memory that is still in use is freed
    later by its own deleter; all other memory is freed here.
    """
    told = {"pages_requested": asked}
    if on_gpu or asked == "as-is":
        reason = "the work is on a GPU" if asked == "auto" else ""
        yield lambda: {**told, "pages": "as-is", "pages_reason": reason}
        return
    wanted = "retained" if asked == "auto" else asked

    with _C.CpuPages(wanted) as governed:

        def outcome() -> dict[str, str]:
            reason = governed.reason()
            if reason:
                return {**told, "pages": "as-is", "pages_reason": reason}
            used = {"pages": wanted, "pages_reason": _OF_AUTO if asked == "auto" else ""}
            return {**told, **used}

        yield outcome
