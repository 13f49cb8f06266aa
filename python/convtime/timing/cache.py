"""What each call finds in the cache: a flush or a rotation before it, and what is said of that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from convtime.core.load import _C
from convtime.timing import cpu
from convtime.timing.candidate import Candidate, backward_of
from convtime.timing.neutral import without_modes
from convtime.timing.options import Cache
from convtime.timing.rotation import rotate

#: Why a CPU's cache was not controlled, by what was asked for.
_CPU_REASONS = {
    "auto": "a flush takes milliseconds on a CPU; cache='cold' asks for it",
    "cold": "this machine does not say how much its CPUs' caches hold",
    "warm": "of a CPU's cache, only cache='cold' is controlled",
    "rotate": "of a CPU's cache, only cache='cold' is controlled",
}
_ROTATION_OVER_L2 = 5


@dataclasses.dataclass(frozen=True)
class CachedCalls:
    """A candidate as it is called.

    Attributes:
        copies: what is called in turn.
        cache: what a call finds in the cache; see :class:`convtime.Measurement`.
        cache_reason: why, where that is not what was asked for.
    """

    copies: tuple[Candidate, ...]
    cache: str
    cache_reason: str


def prepare(
    candidates: Iterable[Candidate], cache: Cache, device: torch.device
) -> list[CachedCalls]:
    """Makes of candidates what is called so that the cache is as asked for.

    Args:
        candidates: what is timed.
        cache: as asked for. A GPU's flush is none of the calls': see :func:`flush_buffers`.
        device: where the work runs.
    """
    on_gpu = device.type == "cuda"
    every = [
        _on_gpu(candidate, cache, device) if on_gpu else _on_cpu(candidate, cache)
        for candidate in candidates
    ]
    every = [_of_timed_pass(calls) for calls in every]
    if not on_gpu and cache == "cold":
        # Last, since the forward pass that a backward pass needs fills the caches again.
        every = _flushed(every)
    return every


def _of_timed_pass(calls: CachedCalls) -> CachedCalls:
    copies = (backward_of(copy) if copy.backward else copy for copy in calls.copies)
    return dataclasses.replace(calls, copies=tuple(copies))


def _on_cpu(candidate: Candidate, cache: Cache) -> CachedCalls:
    return CachedCalls((candidate,), "uncontrolled", _CPU_REASONS[cache])


def _flushed(every: list[CachedCalls]) -> list[CachedCalls]:
    """The calls behind a flush of the CPU's caches; as they are where their size is not known."""
    buffer = cpu.flush_buffer()
    if buffer is None:
        return every
    return [
        CachedCalls(tuple(cpu.flushing(copy, buffer) for copy in calls.copies), "cold", "")
        for calls in every
    ]


def _on_gpu(candidate: Candidate, cache: Cache, device: torch.device) -> CachedCalls:
    if cache == "auto":
        return CachedCalls((candidate,), "cold", "the work is on a GPU")
    if cache != "rotate":
        return CachedCalls((candidate,), cache, "")
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    rotation = rotate(candidate, device, _ROTATION_OVER_L2 * l2_bytes)
    if not rotation.left_warm:
        return CachedCalls(rotation.copies, "rotate", "")
    found = "partly warm" if rotation.bytes_per_call else "warm"
    return CachedCalls(rotation.copies, found, "not rotated: " + ", ".join(rotation.left_warm))


def flush_buffers(cache: Cache, gpus: Iterable[torch.device]) -> list[torch.Tensor]:
    """What is written before each call so that the GPUs' L2 caches are cold; a buffer each."""
    if cache not in ("auto", "cold"):
        return []
    with without_modes():
        return [
            torch.empty(_C.flush_buffer_bytes(gpu.index), dtype=torch.uint8, device=gpu)
            for gpu in gpus
        ]
