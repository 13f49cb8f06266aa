"""Rotation: give each call different copies of its tensors, so that none of them is cached.

The method is that of flashinfer's rotating buffers: before a copy is used again, the calls on the
other copies have moved several times the cache's size through the cache. Unlike a flush, this takes
no time between calls, and keeps cached data that does not belong to the call's tensors.
"""

from __future__ import annotations

import dataclasses

from convtime.timing.options import Placement
from convtime.timing.sampling.copying import Original, UncopiableError
from convtime.timing.sampling.placement import Copies, make_copies

_CACHE_LINE = 128  # bytes; minimum that a storage takes in the cache


@dataclasses.dataclass(frozen=True)
class Rotation:
    """The copies of a candidate, and the tensors that could not be copied.

    Attributes:
        copies: the copies to call in turn.
        bytes_per_call: bytes of cache that the storages of one copy take.
        left_warm: data that calls may still find in the cache, each described, such as
            ``closure variable 'x'`` for a tensor that all calls share.
    """

    copies: Copies
    bytes_per_call: int
    left_warm: tuple[str, ...]


def rotate(
    original: Original,
    working_set_bytes: int,
    max_copies: int = 65_536,
    placement: Placement = "as-is",
    places: int = 1,
) -> Rotation:
    """Copy a candidate until the other copies hold a working set between two uses of one copy.

    If a single call moves the working set, copies are only made for other placements.

    Args:
        original: candidate to copy.
        working_set_bytes: bytes of other data that evict a copy from the cache.
        max_copies: maximum number of copies, including the original.
        placement: placement of the copies; ``as-is`` puts them one after another, and the first is
            the original, which is not moved.
        places: minimum number of copies for another placement.

    Returns:
        The copies, and the data that calls may still find in the cache.

    Raises:
        ValueError: if an argument cannot be copied, or if ``setup`` refers to a tensor that
            rotates, because it would reset only the original.
        torch.OutOfMemoryError: if the copies do not fit on the device.
    """
    candidate = original.candidate
    sizes = [storage.nbytes() for storage in original.storages.values()]
    bytes_per_call = sum(max(size, _CACHE_LINE) for size in sizes if size)
    left_warm = list(original.left_out)
    if bytes_per_call == 0:
        left_warm = left_warm or ["no tensor in the arguments"]
        return Rotation(Copies([candidate]), 0, tuple(left_warm))
    needed = 1
    if bytes_per_call < working_set_bytes:
        needed += -(-working_set_bytes // bytes_per_call)
    if needed > max_copies:
        left_warm.append(
            f"{max_copies} copies of {bytes_per_call} bytes are less than the {working_set_bytes} "
            "bytes that evict a copy from the cache"
        )
    count = min(needed, max_copies)
    if placement != "as-is":
        count = max(count, places)
    if count > 1 and original.in_setup:
        raise ValueError(
            f"setup must not refer to the arguments of {candidate.name!r} with cache='rotate', "
            f"which copies them, got one in {original.in_setup}; use cache='cold'"
        )
    try:
        return Rotation(_copies(original, count, placement), bytes_per_call, tuple(left_warm))
    except UncopiableError as error:
        raise ValueError(
            f"the inputs of {candidate.name!r} must support copy.deepcopy with cache='rotate', "
            f"which copies them, got {error}; use cache='cold'"
        ) from error


def _copies(original: Original, count: int, placement: Placement) -> Copies:
    if placement != "as-is":
        return make_copies(original, count, placement)
    copies = Copies([]) if count == 1 else make_copies(original, count - 1, placement)
    copies.candidates.insert(0, original.candidate)
    return copies
