"""Serialize timings on a GPU: one timing runs while the others wait for their turn.

Each GPU has a file that is locked during a timing. The system releases the lock when the process
ends, even if it is killed, so no lock is left behind.
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
    """How a timing got its turn.

    Attributes:
        waited_seconds: time in seconds that it waited for other timings.
        disturbed_by: why other timings may run on the GPUs at the same time; empty if they do not.
    """

    waited_seconds: float
    disturbed_by: str


class _Timing(threading.local):
    """A thread's GPUs, with the reason of any disturbance: a timed function may itself time."""

    def __init__(self) -> None:
        self.on: dict[str, str] = {}


_timing = _Timing()


@contextlib.contextmanager
def turn(gpus: Collection[str], patience: float) -> Iterator[Turn]:
    """Keep this user's other processes and threads from timing on the given GPUs.

    This never fails: if the others do not finish in time, or locking fails, the block runs next to
    them. A nested block of the same thread does not wait.

    Args:
        gpus: UUIDs of the GPUs.
        patience: maximum number of seconds to wait for other timings.
    """
    on = _timing.on
    wanted = sorted(set(gpus) - on.keys())  # a fixed order prevents deadlocks
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
    """Lock a GPU's file, and return the seconds spent waiting for the lock."""
    name = f"timing-{gpu}"
    try:
        locks.enter_context(exclusive_state(name, patience=0))
        return 0.0
    except TimeoutError:
        start = time.monotonic()
        locks.enter_context(exclusive_state(name, patience=max(patience, 0.0)))
        return time.monotonic() - start
