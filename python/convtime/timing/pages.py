"""Which pages of memory the tensors that calls on the CPU allocate are in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from convtime.core.load import _C
from convtime.timing.options import Pages

_OF_AUTO = "so that times do not depend on what the process allocated before"


@contextlib.contextmanager
def governed_pages(asked: Pages, *, on_gpu: bool) -> Iterator[Callable[[], dict[str, str]]]:
    """Has PyTorch allocate memory on the CPU in the requested pages, in all threads.

    Gives a function that returns what a Measurement says of it. It is to be called after sampling.
    The previous allocator is restored however this ends. Memory that is still in use is freed later
    by its own deleter; all other memory is freed here.
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
