"""What each call finds in the cache: what is written before it, and what is said of that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from convtime.core.load import _C
from convtime.timing.neutral import without_modes
from convtime.timing.options import Cache

#: Why a CPU's cache was not controlled, by what was asked for.
CPU_REASONS = {
    "auto": "a flush takes milliseconds on a CPU; cache='cold' asks for it",
    "cold": "this machine does not say how much its CPUs' caches hold",
    "cold-clean": "of a CPU's cache, only cache='cold' is controlled",
    "warm": "of a CPU's cache, only cache='cold' is controlled",
    "rotate": "of a CPU's cache, only cache='cold' is controlled",
}
_ROTATION_OVER_L2 = 5
_FLUSHED = ("auto", "cold", "cold-clean")  # on a GPU


def gpu_cache(asked: Cache) -> tuple[str, str]:
    """What calls on a GPU find in its cache, and why where that is not what was asked for."""
    return ("cold", "the work is on a GPU") if asked == "auto" else (asked, "")


def working_set_bytes(device: torch.device) -> int:
    """Bytes that calls on other copies move through a GPU's cache before one is called again."""
    return _ROTATION_OVER_L2 * int(torch.cuda.get_device_properties(device).L2_cache_size)


def flush_buffers(cache: Cache, gpus: Iterable[torch.device]) -> list[torch.Tensor]:
    """What is touched before each call so that the GPUs' L2 caches are cold; a buffer each."""
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
    """Has a flush reach all of the L2 caches, also what is set aside for persisting accesses.

    Gives why it may not, empty where it does, and sets as much aside again afterwards.
    """
    with contextlib.ExitStack() as stack:
        told = [
            stack.enter_context(_C.WithoutPersistingL2(gpu.index))
            for gpu in gpus
            if cache in _FLUSHED
        ]
        yield "; ".join(filter(None, told))
