"""One timing after the other on a GPU: whoever times keeps others waiting for their turn.

A file for each GPU is locked meanwhile. The system takes a lock from a process that ends, however
it ends, so that nothing is left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Collection, Iterator

from convtime.core.files import exclusive_state


@dataclasses.dataclass(frozen=True)
class Turn:
    """How a timing came to its turn.

    Attributes:
        waited_seconds: for how long it waited for others.
        disturbed_by: why others may time on the GPUs meanwhile, in words; empty where they do not.
    """

    waited_seconds: float
    disturbed_by: str


class _Timing(threading.local):
    """GPUs that a thread times on, and who disturbs it: what it times may time something itself."""

    def __init__(self) -> None:
        self.on: dict[str, str] = {}


_timing = _Timing()


@contextlib.contextmanager
def turn(gpus: Collection[str], patience: float) -> Iterator[Turn]:
    """Keeps other processes and threads of this user from timing on GPUs.

    It never fails: where the others are not done in time, or nothing can be locked, the block runs
    beside them. Within a block of the same thread there is nothing to wait for.

    Args:
        gpus: their UUIDs.
        patience: seconds to wait for others at most.
    """
    on = _timing.on
    wanted = sorted(set(gpus) - on.keys())  # in one order, or two could wait for each other
    start = time.monotonic()
    waited, disturbed_by = 0.0, next((on[gpu] for gpu in gpus if on.get(gpu)), "")
    with contextlib.ExitStack() as locks:
        for gpu in wanted:
            left = patience - (time.monotonic() - start)
            try:
                waited += _lock(gpu, left, locks)
            except TimeoutError:
                waited = time.monotonic() - start
                disturbed_by = (
                    f"another process or thread was still timing on {gpu} after {waited:.1f} s"
                )
                break
            except RuntimeError as error:
                disturbed_by = str(error)
                break
        locks.callback(_forget, wanted)
        on.update(dict.fromkeys(wanted, disturbed_by))
        yield Turn(waited, disturbed_by)


def _forget(gpus: Collection[str]) -> None:
    for gpu in gpus:
        _timing.on.pop(gpu, None)


def _lock(gpu: str, patience: float, locks: contextlib.ExitStack) -> float:
    """Locks a GPU's file, and returns for how long that had to be waited for."""
    name = f"timing-{gpu}"
    try:
        locks.enter_context(exclusive_state(name, patience=0))
        return 0.0
    except TimeoutError:
        start = time.monotonic()
        locks.enter_context(exclusive_state(name, patience=max(patience, 0.0)))
        return time.monotonic() - start
