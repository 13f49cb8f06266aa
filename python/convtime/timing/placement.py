"""Placement: at which addresses a call's tensors lie, as a condition of its timing.

The addresses alone move a kernel's time by percents, by how they fall on the memory's channels and
the cache's slices, and no number of samples at one place says anything of another. So there are
copies at random places, of which each call takes another, all in one allocation.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import gc
import itertools
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import torch

from convtime.core.errors import first_line
from convtime.timing.candidate import Candidate
from convtime.timing.copying import Original, Storages, UncopiableError, is_on
from convtime.timing.neutral import without_modes
from convtime.timing.options import Options, Placement
from convtime.timing.reach import is_plain, reachable

#: Bytes; that of the CUDA allocator, and of its large blocks.
ALIGNMENT, LARGE_PAGE = 512, 2 << 20
# By no coarser alignment of its data a kernel is chosen.
_COARSEST_LOAD = 256
# Between copies, in all and for each at most: enough for any address modulo large pages.
_GAP_BYTES = 256 << 20
_GAP_BYTES_EACH = 1 << 20

_MOST_BYTES = 4 << 30
_MOST_PLACES = 256
_FEWEST_PLACES = 4
_COPYING_SECONDS = 0.03
#: More take longer than that.
MOST_OBJECTS = 10_000
# A second sample at a place says how much of the spread is between places.
_VISITED_TWICE = 8


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where copies lie in an allocation.

    Attributes:
        starts: the offset of each, in bytes, copy by copy, and within a copy storage by storage.
        nbytes: what the allocation has to hold.
    """

    starts: tuple[int, ...]
    nbytes: int

    def in_order(self) -> list[int]:
        """Indices into ``starts`` by address."""
        return sorted(range(len(self.starts)), key=self.starts.__getitem__)


def lay_out(
    sizes: Sequence[int], copies: int, placement: Placement, source: random.Random
) -> Layout:
    """Places copies of storages, none on another.

    Args:
        sizes: bytes of each storage of a copy, none of them 0.
        copies: how many copies of all of them there are.
        placement: ``random`` for any order with random gaps, so that the addresses of one copy say
            nothing of another's, also modulo large pages; ``aligned`` for multiples of 2 MiB in
            any order; ``as-is`` for one right after the other.
        source: of the randomness.
    """
    pairs = list(range(copies * len(sizes)))
    if placement != "as-is":
        source.shuffle(pairs)
    alignment = LARGE_PAGE if placement == "aligned" else ALIGNMENT
    room = min(_GAP_BYTES, _GAP_BYTES_EACH * len(pairs)) if placement == "random" else 0
    # Always as much in all, so that the allocator finds room that it had before.
    gaps = sorted(source.randrange(room // ALIGNMENT + 1) for _ in pairs) if room else ()
    starts = [0] * len(pairs)
    taken = 0
    for pair, gap in itertools.zip_longest(pairs, gaps, fillvalue=0):
        starts[pair] = taken + ALIGNMENT * gap
        taken += _rounded(sizes[pair % len(sizes)], alignment)
    return Layout(tuple(starts), taken + room)


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def visits(places: int) -> list[int]:
    """The places in the order that calls take them, some of them twice in a row."""
    return [
        place
        for place in range(places)
        for _ in range(2 if place % _VISITED_TWICE == 0 and places > 1 else 1)
    ]


def _nothing() -> None: ...


@dataclasses.dataclass
class Copies:
    """Copies of a candidate in one allocation, until they are released.

    Attributes:
        candidates: the copies.
        storages: of each copy.
        addresses: those of the allocation.
        refill: has the copies hold what the original does by now.
    """

    candidates: list[Candidate]
    storages: list[Storages] = dataclasses.field(default_factory=list)
    addresses: range = range(0)
    refill: Callable[[], None] = _nothing

    def release(self) -> None:
        """Gives the memory back, as soon as no call holds any of it."""
        self.candidates.clear()
        self.storages.clear()
        self.refill = _nothing


def make_copies(original: Original, count: int, placement: Placement) -> Copies:
    """Copies a candidate so many times.

    Raises:
        UncopiableError: if something that it is called with cannot be copied.
        torch.OutOfMemoryError: if the copies do not fit on the device.
    """
    original.origins.clear()
    with without_modes(), _without_collections():
        copies = _filled(original.storages, count, placement)
        copies.candidates += [original.on(storages) for storages in copies.storages]
    return copies


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keeps Python from looking for garbage among thousands of objects that are all in use.

    Some of those looks go through all objects of the process, which takes longer than the copies.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _filled(storages: Storages, count: int, placement: Placement) -> Copies:
    """The storages of each copy, each on a part of one buffer.

    A storage keeps the buffer alive, and cannot outgrow its part.
    """
    full = {key: storage for key, storage in storages.items() if storage.nbytes()}
    # Results are written to empty tensors by resizing them, which a part of a buffer refuses.
    every: list[dict[int, torch.UntypedStorage]] = [
        {
            key: torch.empty(0, dtype=torch.uint8, device=storage.device).untyped_storage()
            for key, storage in storages.items()
            if key not in full
        }
        for _ in range(count)
    ]
    if not full:
        return Copies([], list(every))
    keys, sources = list(full), [bytes_of(storage) for storage in full.values()]
    chance = random.Random()  # noqa: S311  # no secret, and the program's own stays as it is
    layout = lay_out([source.numel() for source in sources], count, placement, chance)
    buffer = _aligned_buffer(layout.nbytes, placement, sources[0].device)
    refill = functools.partial(_fill, buffer, layout, sources)
    refill()
    whole, base = buffer.untyped_storage(), buffer.storage_offset()
    for index, start in enumerate(layout.starts):
        copy, which = divmod(index, len(keys))
        first = base + start
        every[copy][keys[which]] = whole[first : first + sources[which].numel()]
    addresses = range(buffer.data_ptr(), buffer.data_ptr() + layout.nbytes)
    return Copies([], list(every), addresses, refill)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """All of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _aligned_buffer(nbytes: int, placement: Placement, device: torch.device) -> torch.Tensor:
    alignment = LARGE_PAGE if placement == "aligned" else ALIGNMENT
    buffer = torch.empty(nbytes + alignment, dtype=torch.uint8, device=device)
    first = -buffer.data_ptr() % alignment
    return buffer[first : first + nbytes]


def _fill(buffer: torch.Tensor, layout: Layout, sources: Sequence[torch.Tensor]) -> None:
    """Few kernels, however many copies there are."""
    wide = all(map(is_wide, sources))
    if wide:  # bytes are copied a few at a time
        buffer, sources = buffer.view(torch.int64), [one.view(torch.int64) for one in sources]
    unit = 8 if wide else 1
    lengths, filled_from, end = [], [], 0
    for index in layout.in_order():
        source = sources[index % len(sources)]
        start = layout.starts[index] // unit
        lengths += [start - end, source.numel()]
        filled_from.append(source)
        end = start + source.numel()
    pieces = buffer.split_with_sizes([*lengths, buffer.numel() - end])
    torch._foreach_copy_(list(pieces[1::2]), filled_from)


def is_wide(as_bytes: torch.Tensor) -> bool:
    """Whether they can be seen as words of eight bytes."""
    return as_bytes.data_ptr() % 8 == 0 and as_bytes.numel() % 8 == 0


class CannotPlaceError(Exception):
    """That a candidate's tensors stay where they are, and why, as part of a sentence."""


def method_obstacle(options: Options) -> str:
    """Why calls that are timed in that way stay where they are; empty where they need not."""
    if options.method == "graph" and options.cache == "warm":
        return (
            "a warm cache needs another call on the same copy before each, and method 'graph' "
            "captures calls back to back"
        )
    if options.method == "cpu" and options.placement == "auto":
        return "what a call takes on the host does not depend on it"
    return ""


def room_for_copies(device: torch.device) -> int:
    """Bytes of a GPU that copies may take: 4 GiB, or a quarter of what is free if that is less."""
    free_bytes, _ = torch.cuda.mem_get_info(device)
    with contextlib.suppress(RuntimeError):  # other allocators than PyTorch's own do not say
        free_bytes += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_MOST_BYTES, free_bytes // 4)


def place(original: Original, placement: Placement, places: int) -> Copies:
    """Copies a candidate to so many places.

    Raises:
        CannotPlaceError: where that cannot be done.
    """
    with _saying_why_not():
        return make_copies(original, places, placement)


@contextlib.contextmanager
def _saying_why_not() -> Iterator[None]:
    try:
        yield
    except UncopiableError as error:
        raise CannotPlaceError(
            f"copy.deepcopy does not copy what it is called with, a {error}"
        ) from error
    except torch.OutOfMemoryError as error:
        raise CannotPlaceError("there is no memory for copies of its tensors") from error
    except RuntimeError as error:  # of tensors whose storage is not all of what they are
        raise CannotPlaceError(f"its tensors cannot be copied ({first_line(error)})") from error


def count_places(
    original: Original, placement: Placement, room_bytes: int, *, backward: bool = False
) -> tuple[int, str]:
    """At how many places a candidate can be called, and why they are few; empty if they are not.

    Args:
        original: what is to be copied.
        placement: ``random`` or ``aligned``.
        room_bytes: what the copies may take.
        backward: whether its gradients are dropped before each call.

    Raises:
        CannotPlaceError: where its tensors, or some of them, have to stay where they are.
    """
    if why_not := obstacle(original, backward=backward):
        raise CannotPlaceError(why_not)
    alignment = LARGE_PAGE if placement == "aligned" else ALIGNMENT
    nbytes = sum(_rounded(one.nbytes(), alignment) for one in original.storages.values())
    fitting = room_bytes // nbytes
    if fitting < _FEWEST_PLACES:
        raise CannotPlaceError(
            f"its tensors take {nbytes / 2**20:,.1f} MiB, of which {_FEWEST_PLACES} copies do not "
            f"fit into {room_bytes / 2**20:,.0f} MiB"
        )
    seconds = _seconds_to_copy(original)
    if seconds > _COPYING_SECONDS:
        raise CannotPlaceError(f"a copy of what it is called with takes {seconds * 1e3:.0f} ms")
    affordable = max(_FEWEST_PLACES, int(_COPYING_SECONDS / seconds))
    count = min(fitting, affordable, _MOST_PLACES)
    if count == _MOST_PLACES:
        return count, ""
    if count == fitting:
        return count, f"there is memory for {count} copies"
    return count, f"a copy of what it is called with takes {seconds * 1e3:.1f} ms"


def is_mapped(address: int) -> bool:
    """Whether a GPU's tensor lies in the host's memory, where an address is the host's, too."""
    there = (ctypes.c_byte * 1).from_address(address)
    return torch.frombuffer(there, dtype=torch.uint8).is_pinned()  # asks CUDA, and reads nothing


def obstacle(original: Original, *, backward: bool, any_address: bool = False) -> str:
    """Why a candidate cannot be called on copies of its tensors; empty where it can.

    Args:
        original: what would be copied.
        backward: whether its gradients are dropped before each call.
        any_address: whether copies may be aligned otherwise than the original's tensors, and lie in
            other memory.
    """
    if original.left_out:
        return "no copies are made of " + ", ".join(original.left_out)
    if original.has_more_objects:
        return f"it refers to more than {MOST_OBJECTS:,} objects, which takes long to copy"
    if not any(storage.nbytes() for storage in original.storages.values()):
        return "there is no tensor in its arguments"
    if not any_address and original.device.type == "cuda":
        addresses = [each.data_ptr() for each in original.storages.values() if each.nbytes()]
        if any(address % _COARSEST_LOAD for address in addresses):
            return (
                f"one of its tensors begins off multiples of {_COARSEST_LOAD} bytes, unlike a copy"
            )
        if any(map(is_mapped, addresses)):
            return "one of its tensors lies in the host's memory, unlike a copy"
    for found in original.objects:
        if isinstance(found, torch.Tensor):
            if found.device.type == "cuda" and not is_on(found, original.device):
                return f"no copies are made of what lies on {found.device}"
            if is_plain(found) and found.numel() and not found.untyped_storage().nbytes():
                return "the memory of one of its tensors was freed"
            if found.grad_fn is not None:
                return "copies would lack the graph that autograd made of an argument"
            if not backward and found.is_leaf and found.grad is not None:
                return "copies would lack the gradients that its arguments have"
        elif kind := _kept_whole(found):
            return f"no copies are made of {kind}"
    if original.in_setup:
        return f"setup refers to its arguments ({original.in_setup})"
    return ""


def _kept_whole(found: object) -> str:
    """What, in words, holds memory that is not seen from here; empty for anything else."""
    if isinstance(found, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return f"what torch.jit compiled ({type(found).__name__})"
    if hasattr(type(found), "__cuda_array_interface__"):
        return f"another library's array ({type(found).__name__})"
    if hasattr(type(found), "__del__"):
        return f"what has a finalizer ({type(found).__name__})"
    if _is_compiled(found):
        return "a module that torch.compile made, which might be compiled anew for each of them"
    return ""


def _is_compiled(found: object) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and isinstance(found, dynamo.OptimizedModule):
        return True
    # What Module.compile() made, a deepcopy leaves out.
    return isinstance(found, torch.nn.Module) and found._compiled_call_impl is not None


def _seconds_to_copy(original: Original) -> float:
    """Of a copy without memory of its own; a second one where the first is no cheap one."""
    seconds = float("inf")
    for _ in range(2):
        start = perf_counter()
        with _saying_why_not(), without_modes():
            original.on(original.storages)
        seconds = min(seconds, perf_counter() - start)
        if seconds * _MOST_PLACES < _COPYING_SECONDS:
            break
    return seconds


def blocks_outside(copies: Copies, device: torch.device, result: object) -> list[tuple[int, int]]:
    """Address and bytes of the storages of a call's result that it did not get as arguments."""
    found = (
        tensor.untyped_storage()
        for tensor in reachable(result)
        if isinstance(tensor, torch.Tensor) and is_on(tensor, device) and is_plain(tensor)
    )
    sizes = {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}
    return [(start, size) for start, size in sizes.items() if start not in copies.addresses]
