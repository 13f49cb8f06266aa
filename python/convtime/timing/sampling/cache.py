"""State of the cache at each call: how it is set up and reported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from convtime.core.load import _C
from convtime.timing.neutral import without_modes
from convtime.timing.options import Cache

#: Why a CPU's cache was not controlled, by the requested cache.
CPU_REASONS = {
    "auto": "a flush takes milliseconds on a CPU; cache='cold' requests it",
    "cold": "this machine does not report the size of its CPUs' caches",
    "cold-clean": "on a CPU, only cache='cold' is controlled",
    "warm": "on a CPU, only cache='cold' is controlled",
    "rotate": "on a CPU, only cache='cold' is controlled",
}
_ROTATION_OVER_L2 = 5
_FLUSHED = ("auto", "cold", "cold-clean")  # on a GPU


def working_set_bytes(device: torch.device) -> int:
    """Bytes that calls on other copies move through a GPU's cache before a copy is reused."""
    return _ROTATION_OVER_L2 * int(torch.cuda.get_device_properties(device).L2_cache_size)


def flush_buffers(cache: Cache, gpus: Iterable[torch.device]) -> list[torch.Tensor]:
    """Return buffers to access before each call to make the L2 caches cold, one per GPU."""
    if cache not in _FLUSHED:
        return []
    with without_modes():
        return [
            torch.empty(
                _C.flush_buffer_bytes(gpu.index, clean=cache == "cold-clean"),
                dtype=torch.uint8,
                device=gpu,
            )
            for gpu in gpus
        ]


@contextlib.contextmanager
def without_persisting_lines(cache: Cache, gpus: Iterable[torch.device]) -> Iterator[str]:
    """Let a flush reach the whole L2 caches, including the part set aside for persisting accesses.

    Yields why a flush may not reach all of it, empty if it does. Afterwards restores the size of
    the part set aside.
    """
    with contextlib.ExitStack() as stack:
        told = [
            stack.enter_context(_C.WithoutPersistingL2(gpu.index))
            for gpu in gpus
            if cache in _FLUSHED
        ]
        yield "; ".join(filter(None, told))
