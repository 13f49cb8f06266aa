"""Placement of a call's tensors: their addresses are a condition of its timing.

Addresses alone change a kernel's time by percents, because they decide which memory channels and
cache slices the data map to. No number of samples at one placement shows the time at another. So
tensors are copied to random addresses in one allocation, and each call uses the next copy.

With ``cache="rotate"``, the copies also make the cache cold, as flashinfer's rotating buffers do:
before a copy is used again, the calls on the other copies have moved several times the cache's size
through the cache. Unlike a flush, this takes no time between calls, and keeps cached data that does
not belong to the call's tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import gc
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import torch

from convtime.core.errors import first_line
from convtime.timing.candidate import Candidate
from convtime.timing.options import Options, Placement
from convtime.timing.sampling.copying import Original, Storages, UncopiableError, is_on
from convtime.timing.sampling.object_graph import (
    contents_of,
    holds_still,
    is_plain,
    objects_below,
    without_modes,
)

#: Bytes; alignment of the CUDA allocator, and of its large blocks.
ALIGNMENT, LARGE_PAGE = 512, 2 << 20
# No kernel is selected by a coarser alignment of its data.
_COARSEST_LOAD = 256
# Gaps between copies, in total and for each at most: enough for any address modulo large pages.
_GAP_BYTES = 256 << 20
_GAP_BYTES_EACH = 1 << 20

_FEWEST_PLACES = 4
#: Copying more objects takes longer than that.
MOST_OBJECTS = 10_000
_FEW_TENSORS = 8
_FEW_TENSORS_SECONDS = 40e-6  # to copy them, assumed on every host
# A second sample at the same placement shows how much of the spread is between placements.
_VISITED_TWICE = 8
_CACHE_LINE = 128  # bytes; minimum that a storage takes in the cache


class Effort(NamedTuple):
    """How much copies may cost.

    Attributes:
        places: maximum number of placements of a candidate.
        seconds: host time to make them.
        nbytes: memory for those of all candidates, which the GPU has to write.
    """

    places: int
    seconds: float
    nbytes: int


_EFFORT = Effort(256, 0.03, 4 << 30)
# About as many placements as there is time for samples of a short kernel.
_QUICK_EFFORT = Effort(16, 0.0015, 1280 << 20)


def effort_of(options: Options) -> Effort:
    """Return how much the copies may cost with these options."""
    return _QUICK_EFFORT if options.quick else _EFFORT


def lay_out(
    sizes: Sequence[int], copies: int, placement: Placement, source: random.Random
) -> tuple[list[int], int]:
    """Assign each copy of each storage a place that overlaps no other.

    Args:
        sizes: bytes of each storage of a copy; none is 0.
        copies: number of copies of all storages.
        placement: ``random`` shuffles the copies and adds random gaps, so that the addresses of the
            copies are independent, also modulo large pages; ``aligned`` shuffles them at multiples
            of 2 MiB; ``as-is`` puts them one after another.
        source: random number generator.

    Returns:
        The offset of each storage in bytes, copy by copy, and within a copy storage by storage; and
        the size of the allocation.
    """
    pairs = list(range(copies * len(sizes)))
    if placement != "as-is":
        source.shuffle(pairs)
    alignment = LARGE_PAGE if placement == "aligned" else ALIGNMENT
    room = min(_GAP_BYTES, _GAP_BYTES_EACH * len(pairs)) if placement == "random" else 0
    # The total is always the same, so that the allocator can reuse a block.
    gaps = sorted(source.randrange(room // ALIGNMENT + 1) for _ in pairs) if room else ()
    starts = [0] * len(pairs)
    taken = 0
    for pair, gap in itertools.zip_longest(pairs, gaps, fillvalue=0):
        starts[pair] = taken + ALIGNMENT * gap
        taken += _rounded(sizes[pair % len(sizes)], alignment)
    return starts, taken + room


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def visits(places: int) -> list[int]:
    """Return the placements in the order of the calls; some are used twice in a row."""
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
        storages: the storages of each copy.
        addresses: address range of the allocation.
        refill: gives the copies the current contents of the original.
    """

    candidates: list[Candidate]
    storages: list[Storages] = dataclasses.field(default_factory=list)
    addresses: range = range(0)
    refill: Callable[[], None] = _nothing

    def release(self) -> None:
        """Free the memory as soon as no call uses it."""
        self.candidates.clear()
        self.storages.clear()
        self.refill = _nothing


def make_copies(original: Original, count: int, placement: Placement) -> Copies:
    """Make ``count`` copies of a candidate.

    Raises:
        UncopiableError: if the callable or an argument cannot be copied.
        torch.OutOfMemoryError: if the copies do not fit on the device.
    """
    original.origins.clear()
    with without_modes(), _without_collections():
        copies = _filled(original.storages, count, placement)
        copies.candidates += [original.on(storages) for storages in copies.storages]
    return copies


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection while thousands of objects are created that are all in use.

    Some collections visit all objects of the process, which takes longer than the copies.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _filled(storages: Storages, count: int, placement: Placement) -> Copies:
    """Allocate one buffer, and return the storages of each copy as parts of it.

    Each storage keeps the buffer alive, and cannot be resized beyond its part.
    """
    full = {key: storage for key, storage in storages.items() if storage.nbytes()}
    # Separate, because functions resize an empty output, and a part of a buffer cannot be resized.
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
    keys, sources = list(full), [_bytes_of(storage) for storage in full.values()]
    chance = random.Random()  # noqa: S311  # not a secret, and leaves the program's generator alone
    starts, nbytes = lay_out([source.numel() for source in sources], count, placement, chance)
    buffer = _aligned_buffer(nbytes, placement, sources[0].device)
    refill = functools.partial(_fill, buffer, starts, sources)
    refill()
    whole, base = buffer.untyped_storage(), buffer.storage_offset()
    for index, start in enumerate(starts):
        copy, which = divmod(index, len(keys))
        first = base + start
        every[copy][keys[which]] = whole[first : first + sources[which].numel()]
    addresses = range(buffer.data_ptr(), buffer.data_ptr() + nbytes)
    return Copies([], list(every), addresses, refill)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _aligned_buffer(nbytes: int, placement: Placement, device: torch.device) -> torch.Tensor:
    alignment = LARGE_PAGE if placement == "aligned" else ALIGNMENT
    buffer = torch.empty(nbytes + alignment, dtype=torch.uint8, device=device)
    first = -buffer.data_ptr() % alignment
    return buffer[first : first + nbytes]


def _fill(buffer: torch.Tensor, starts: Sequence[int], sources: Sequence[torch.Tensor]) -> None:
    """Fill the buffer with few kernels, however many copies there are."""
    wide = all(map(_is_wide, sources))
    if wide:  # a copy of bytes moves only a few at a time
        buffer, sources = buffer.view(torch.int64), [one.view(torch.int64) for one in sources]
    unit = 8 if wide else 1
    lengths, filled_from, end = [], [], 0
    for index in sorted(range(len(starts)), key=starts.__getitem__):
        source = sources[index % len(sources)]
        start = starts[index] // unit
        lengths += [start - end, source.numel()]
        filled_from.append(source)
        end = start + source.numel()
    pieces = buffer.split_with_sizes([*lengths, buffer.numel() - end])
    torch._foreach_copy_(list(pieces[1::2]), filled_from)


def _is_wide(as_bytes: torch.Tensor) -> bool:
    """Whether the bytes can be viewed as 64-bit words."""
    return as_bytes.data_ptr() % 8 == 0 and as_bytes.numel() % 8 == 0


class CannotPlaceError(Exception):
    """Raised if a candidate's tensors cannot be copied elsewhere; says why, as a clause."""


def room_for_copies(device: torch.device, effort: Effort) -> int:
    """Bytes of GPU memory that copies may use, at most a quarter of the free memory."""
    free_bytes, _ = torch.cuda.mem_get_info(device)
    # Other allocators than PyTorch's do not report these.
    with contextlib.suppress(RuntimeError, KeyError):
        held = torch.cuda.memory_stats_as_nested_dict(device)
        reserved, used = (held[f"{kind}_bytes"]["all"] for kind in ("reserved", "allocated"))
        free_bytes += reserved["current"] - used["current"]
    return min(effort.nbytes, free_bytes // 4)


def place(original: Original, placement: Placement, places: int) -> Copies:
    """Copy a candidate to ``places`` placements.

    Raises:
        CannotPlaceError: if it cannot be copied.
    """
    with _saying_why_not():
        return make_copies(original, places, placement)


@contextlib.contextmanager
def _saying_why_not() -> Iterator[None]:
    try:
        yield
    except UncopiableError as error:
        raise CannotPlaceError(f"copy.deepcopy fails on one of its inputs, a {error}") from error
    except torch.OutOfMemoryError as error:
        raise CannotPlaceError("there is not enough memory for copies of its tensors") from error
    except RuntimeError as error:  # of tensors with data besides their storage
        raise CannotPlaceError(f"its tensors cannot be copied ({first_line(error)})") from error


def count_places(
    original: Original,
    placement: Placement,
    room_bytes: int,
    effort: Effort,
    *,
    backward: bool = False,
) -> tuple[int, str]:
    """Return at how many placements a candidate can be called, and why so few; empty if not few.

    Args:
        original: the candidate to copy.
        placement: ``random`` or ``aligned``.
        room_bytes: memory that the copies may use.
        effort: limits of the number of copies, and of the time that they take.
        backward: whether the gradients are set to None before each call.

    Raises:
        CannotPlaceError: if some of the tensors must stay where they are.
    """
    if why_not := obstacle(original, backward=backward):
        raise CannotPlaceError(why_not)
    alignment = LARGE_PAGE if placement == "aligned" else ALIGNMENT
    nbytes = sum(_rounded(one.nbytes(), alignment) for one in original.storages.values())
    fitting = room_bytes // nbytes
    if fitting < _FEWEST_PLACES:
        raise CannotPlaceError(
            f"its tensors take {nbytes / 2**20:,.1f} MiB, and {_FEWEST_PLACES} copies do not fit "
            f"into {room_bytes / 2**20:,.0f} MiB"
        )
    seconds = _seconds_to_copy(original, effort)
    if seconds > effort.seconds:
        raise CannotPlaceError(f"copying its inputs takes {seconds * 1e3:.0f} ms")
    # A power of two: later timings then need blocks of the same sizes, which the allocator has.
    affordable = max(_FEWEST_PLACES, 1 << int(math.log2(effort.seconds / seconds)))
    count = min(fitting, affordable, effort.places)
    if count == effort.places:
        return count, "quick timing makes no more copies" if count < _EFFORT.places else ""
    if count == fitting:
        return count, f"there is memory for {count} copies"
    return count, f"copying its inputs takes {seconds * 1e3:.1f} ms"


def is_mapped(address: int) -> bool:
    """Whether a GPU tensor is in host memory, where its address is also the host's address."""
    there = (ctypes.c_byte * 1).from_address(address)
    return torch.frombuffer(there, dtype=torch.uint8).is_pinned()  # queries CUDA, reads no memory


def obstacle(original: Original, *, backward: bool, any_address: bool = False) -> str:
    """Return why a candidate cannot be called on copies of its tensors; empty if it can.

    Args:
        original: the candidate that would be copied.
        backward: whether the gradients are set to None before each call.
        any_address: whether copies may differ from the original in alignment and kind of memory.
    """
    if original.left_out:
        return "no copies are made of " + ", ".join(original.left_out)
    if original.has_more_objects:
        return f"it refers to more than {MOST_OBJECTS:,} objects, which take too long to copy"
    if original.nbytes == 0:
        return "its arguments contain no tensor"
    if not any_address and original.device.type == "cuda":
        addresses = [each.data_ptr() for each in original.storages.values() if each.nbytes()]
        if any(address % _COARSEST_LOAD for address in addresses):
            return f"one of its tensors is not aligned to {_COARSEST_LOAD} bytes, unlike a copy"
        if any(map(is_mapped, addresses)):
            return "one of its tensors is in host memory, unlike a copy"
    for each in original.objects:
        if isinstance(each, torch.Tensor):
            if each.device.type == "cuda" and not is_on(each, original.device):
                return f"no copies are made of tensors on {each.device}"
            if is_plain(each) and each.numel() and not each.untyped_storage().nbytes():
                return "the memory of one of its tensors was freed"
            if each.grad_fn is not None:
                return "copies would lack the autograd graph of an argument"
            if not backward and each.is_leaf and each.grad is not None:
                return "copies would lack the gradients of its arguments"
        elif kind := _uncopied_kind(each):
            return f"no copies are made of {kind}"
    if original.in_setup:
        return f"setup refers to its arguments ({original.in_setup})"
    return ""


def _uncopied_kind(instance: object) -> str:
    """Describe an object whose memory cannot be inspected here; empty for any other object."""
    if isinstance(instance, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return f"code that torch.jit compiled ({type(instance).__name__})"
    if hasattr(type(instance), "__cuda_array_interface__"):
        return f"another library's array ({type(instance).__name__})"
    if hasattr(type(instance), "__del__"):
        return f"an object with a finalizer ({type(instance).__name__})"
    if _is_compiled(instance):
        return "a module that torch.compile made, which might be recompiled for each copy"
    return ""


def _is_compiled(instance: object) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and isinstance(instance, dynamo.OptimizedModule):
        return True
    # A deepcopy drops the result of Module.compile().
    return isinstance(instance, torch.nn.Module) and instance._compiled_call_impl is not None


def _seconds_to_copy(original: Original, effort: Effort) -> float:
    """Time a copy that shares the storages; the minimum of two unless the first is fast.

    A few plain tensors are not tried: that would take as long as ten of their copies.
    """
    if original.is_flat and len(original.tensors) <= _FEW_TENSORS:
        return _FEW_TENSORS_SECONDS
    seconds = float("inf")
    for _ in range(2):
        start = perf_counter()
        with _saying_why_not(), without_modes():
            original.on(original.storages)
        seconds = min(seconds, perf_counter() - start)
        if seconds * effort.places < effort.seconds:
            break
    return seconds


def blocks_outside(copies: Copies, device: torch.device, result: object) -> list[tuple[int, int]]:
    """Address and size of each storage of a call's result that is not part of an argument."""
    storages = (
        tensor.untyped_storage()
        for tensor in objects_below(result)
        if isinstance(tensor, torch.Tensor) and is_on(tensor, device) and is_plain(tensor)
    )
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
    return [(start, size) for start, size in sizes.items() if start not in copies.addresses]


class Check:
    """Checks after the first call, on a copy, whether calls modify their inputs.

    If the first call wrote something, a second call shows whether it writes the same again, as to a
    tensor for its result. Then all copies get the values that the first call wrote, and later calls
    change nothing.

    Attributes:
        adds_gradients: whether calls are expected to leave gradients, as backward passes do.
        reason: why the copies cannot be used any longer, as part of a sentence.
    """

    def __init__(self, original: Original, copies: Copies) -> None:
        self._original = original
        self._copies = copies
        # Objects that the copy owns: each copy's would have a different state.
        self._contents: list[tuple[object, tuple[object, ...]]] = []
        if not original.is_flat:
            roots = original.roots_of(copies.candidates[0])
            self._contents += ((held, contents_of(held)) for held in objects_below(roots))
        self._is_second = False
        self.adds_gradients = False
        self.reason = ""

    def __call__(self) -> bool | None:
        """Return True or False, or None if it takes another call on the same copy to decide.

        The original also gets the values that calls wrote to the copy, bit by bit.
        """
        written: set[int] = set()
        with without_modes():
            try:
                written = self._look()
                if self._is_second and not (written or self.reason):
                    self._copies.refill()
            except torch.OutOfMemoryError:
                self.reason = "there is not enough memory to check that calls do not write to them"
        if written and not self.reason:
            if not self._is_second:
                self._is_second = True
                return None
            self.reason = f"a call writes different values to {self._names(written)} each time"
        self._contents.clear()
        if self.reason:
            self._original.origins.clear()
            self._copies.release()
        return not self.reason

    def _look(self) -> set[int]:
        """Return the storages written to since the last check, or since the copy was made."""
        originals, called = self._original.storages, self._copies.storages[0]
        if self._original.device.type == "cuda":
            torch.cuda.synchronize(self._original.device)  # the call may use other streams
        resized = {key for key in originals if called[key].nbytes() != originals[key].nbytes()}
        if resized:
            self.reason = f"a call resizes {self._names(resized)}"
            return resized
        written = _different(originals, called)
        elsewhere: set[int] = set()
        if written and not self._is_second:
            elsewhere = written & _different(originals, self._copies.storages[1])
        for key in written - elsewhere:
            _bytes_of(originals[key]).copy_(_bytes_of(called[key]))
        if elsewhere:
            self.reason = f"a call on a copy writes to the original of {self._names(elsewhere)}"
        else:
            self.reason = self._side_effect()
        return written

    def _names(self, keys: set[int]) -> str:
        return ", ".join(self._original.names_of(keys))

    def _side_effect(self) -> str:
        """Describe an effect of the call other than writing to storages; empty for none."""
        for held, contents in self._contents:
            if not holds_still(held, contents):
                return f"a call modifies one of its inputs, a {type(held).__name__}"
        if self.adds_gradients:
            return ""
        for held in objects_below(self._original.roots_of(self._copies.candidates[0])):
            if isinstance(held, torch.Tensor) and held.is_leaf and held.grad is not None:
                return "a call adds to gradients of its arguments"
        return ""


def _different(some: Storages, others: Storages) -> set[int]:
    """Return the keys of storages with different bits; uses few kernels and one synchronization."""
    keys = [key for key, storage in some.items() if storage.nbytes()]
    flags = [_differ(_bytes_of(some[key]), _bytes_of(others[key])) for key in keys]
    return {key for key, flag in zip(keys, torch.stack(flags).tolist(), strict=True) if flag}


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if _is_wide(one) and _is_wide(other):  # a comparison of bytes handles only a few at a time
        one, other = one.view(torch.int64), other.view(torch.int64)
    return (one != other).any()


def rotate(
    original: Original,
    working_set_bytes: int,
    max_copies: int = 65_536,
    placement: Placement = "as-is",
    places: int = 1,
) -> tuple[Copies, list[str]]:
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
        The copies to call in turn, and the data that calls may still find in the cache, each
        described, such as ``closure variable 'x'`` for a tensor that all calls share.

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
        return Copies([candidate]), left_warm or ["no tensor in the arguments"]
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
        if placement != "as-is":
            return make_copies(original, count, placement), left_warm
        copies = Copies([]) if count == 1 else make_copies(original, count - 1, placement)
    except UncopiableError as error:
        raise ValueError(
            f"the inputs of {candidate.name!r} must support copy.deepcopy with cache='rotate', "
            f"which copies them, got {error}; use cache='cold'"
        ) from error
    copies.candidates.insert(0, candidate)
    return copies, left_warm
