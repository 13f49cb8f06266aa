"""A process that takes one core for random intervals. It ends with the process that started it.

It imports the standard library alone, so that it starts within milliseconds.
"""

import contextlib
import ctypes
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_READY = "ready"
_BLOCK = bytes(1 << 16)  # takes some tens of microseconds to hash


@contextlib.contextmanager
def planted_load(seed: str, on_seconds: float, off_seconds: float) -> Iterator[int]:
    """Yields its process id; seconds are means of intervals, which are drawn exponentially."""
    command = [sys.executable, "-I", "-S", __file__, seed, str(on_seconds), str(off_seconds)]
    process = subprocess.Popen(
        [*command, str(os.getpid())], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != _READY:
            raise RuntimeError(f"the load must print {_READY!r}, but ended with {process.wait()}")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def intervals(seed: str, on_seconds: float, off_seconds: float) -> Iterator[tuple[bool, float]]:
    chance = random.Random(seed)  # noqa: S311
    computing = chance.random() < on_seconds / (on_seconds + off_seconds)
    while True:
        yield computing, chance.expovariate(1 / (on_seconds if computing else off_seconds))
        computing = not computing


def compute(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        hashlib.sha256(_BLOCK)


def main(seed: str, on_seconds: str, off_seconds: str, parent: str) -> None:
    # The kernel is to kill this process when its parent ends, however that ends.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        raise SystemExit
    print(_READY, flush=True)
    for computing, seconds in intervals(seed, float(on_seconds), float(off_seconds)):
        (compute if computing else time.sleep)(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
