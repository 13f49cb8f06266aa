"""The CPU that calls are made on: its caches, its governor and load, and a thread's place on it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from convtime.candidate import Candidate

_CPUS = Path("/sys/devices/system/cpu")
_FLUSH_OVER_CACHES = 2  # what is written, over what the caches hold


def governors(cpus: Iterable[int], root: Path = _CPUS) -> tuple[str, ...]:
    """What decides on the CPUs' clocks, e.g. "performance"; several names where they differ.

    None at all where the system does not say, as in most virtual machines.
    """
    paths = [root / f"cpu{cpu}" / "cpufreq" / "scaling_governor" for cpu in cpus]
    return tuple(sorted({one.read_text().strip() for one in paths if one.exists()}))


def cache_bytes(cpus: Iterable[int], root: Path = _CPUS) -> int | None:
    """What the CPUs' data caches of all levels hold, each counted once; None if that is not known.

    Each, since several threads may work in a call, and each of them leaves data in its own.
    """
    sizes: dict[tuple[str, str], int] = {}
    for cpu in cpus:
        for cache in root.glob(f"cpu{cpu}/cache/index*"):
            try:
                level, kind, size, shared = (
                    (cache / name).read_text().strip()
                    for name in ("level", "type", "size", "shared_cpu_list")
                )
            except OSError:  # the kernel has no file for what the firmware does not tell
                return None
            if kind != "Instruction":
                sizes[level + kind, shared] = int(size.removesuffix("K")) * 1024
    return sum(sizes.values()) or None


def flush_buffer() -> torch.Tensor | None:
    """What evicts all else from the caches when it is written; None where their size is unknown."""
    size = cache_bytes(os.sched_getaffinity(0))
    return None if size is None else torch.zeros(_FLUSH_OVER_CACHES * size, dtype=torch.uint8)


def flushing(candidate: Candidate, buffer: torch.Tensor) -> Candidate:
    """The candidate with the buffer written before each call, after what it sets up itself."""

    def setup() -> None:
        if candidate.setup is not None:
            candidate.setup()
        buffer.add_(1)  # by all of torch's threads, so that each empties its own core's caches

    return dataclasses.replace(candidate, setup=setup)


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """Keeps the calling thread on one CPU, or does nothing for None.

    Raises:
        ValueError: for a CPU that the thread may not run on.
    """
    if cpu is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    if cpu not in allowed:
        raise ValueError(
            f"pin must be one of the {len(allowed)} CPUs that this thread may run on, which lie "
            f"between {min(allowed)} and {max(allowed)}, got {cpu}"
        )
    # Threads take over the pin of the one that starts them: torch's must be there before.
    torch.zeros(1 << 20).add_(1)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
