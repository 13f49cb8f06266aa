"""Rotation: gives each call other copies of its tensors, so that it finds none of them cached.

The method is that of flashinfer's rotating buffers: by the time a copy's turn comes again, the
calls on the other copies have moved several times the cache's size through it. Unlike a flush,
this costs no time between calls, and leaves in the cache what the call itself does not own.
"""

from __future__ import annotations

import dataclasses

from convtime.timing.copying import Original, UncopiableError
from convtime.timing.options import Placement
from convtime.timing.placement import Copies, make_copies

_CACHE_LINE = 128  # bytes; what a smaller storage takes of the cache


@dataclasses.dataclass(frozen=True)
class Rotation:
    """The copies of a candidate, and what could not be copied.

    Attributes:
        copies: what is to be called in turn.
        bytes_per_call: bytes of cache that the storages of one copy take.
        left_warm: what calls may still find in the cache, each in words, such as
            ``closure variable 'x'`` for a tensor that is the same one in every call.
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
    """Copies a candidate until the other copies hold a working set between two uses of one.

    A call that moves the working set by itself is copied for other places alone.

    Args:
        original: what is to be copied.
        working_set_bytes: bytes of other data that push a copy out of the cache.
        max_copies: copies made at most, the original included.
        placement: where the copies lie; ``as-is`` one right after the other, of
            which the first is the original in its own place.
        places: copies made at least, for another placement.

    Returns:
        The copies, and what the calls may still find in the cache.

    Raises:
        ValueError: if an argument cannot be copied, or ``setup`` refers to a tensor that rotates,
            as it would then reset the original only.
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
            "bytes that push a copy out of the cache"
        )
    count = min(needed, max_copies)
    if placement != "as-is":
        count = max(count, places)
    if count > 1 and original.in_setup:
        raise ValueError(
            f"setup must not refer to the arguments of {candidate.name!r} with cache='rotate', "
            f"which calls it on copies of them, got one in {original.in_setup}; use cache='cold'"
        )
    try:
        return Rotation(_copies(original, count, placement), bytes_per_call, tuple(left_warm))
    except UncopiableError as error:
        raise ValueError(
            f"cache='rotate' copies what {candidate.name!r} is called with, which must allow "
            f"copy.deepcopy, got {error}; use cache='cold'"
        ) from error


def _copies(original: Original, count: int, placement: Placement) -> Copies:
    if placement != "as-is":
        return make_copies(original, count, placement)
    copies = Copies([]) if count == 1 else make_copies(original, count - 1, placement)
    copies.candidates.insert(0, original.candidate)
    return copies
