"""Rotation: gives each call other copies of its tensors, so that it finds none of them cached.

The method is that of flashinfer's rotating buffers: by the time a copy's turn comes again, the
calls on the other copies have moved several times the cache's size through it. Unlike a flush,
this costs no time between calls, and leaves in the cache what the call itself does not own.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from convtime.timing.candidate import Candidate
from convtime.timing.reach import (
    is_plain,
    owned,
    reachable,
    subject_of,
    tensors_by_variable,
)

_ALIGNMENT = 512  # bytes; that of the CUDA allocator, on which kernels choose their loads
_CACHE_LINE = 128  # bytes; what a smaller storage takes of the cache
# A copy of these would be something else than what was passed, or fail.
_HANDLES = (
    torch.Generator,
    torch.Stream,
    torch.Event,
    torch.cuda.Stream,
    torch.cuda.Event,
    types.ModuleType,
)


@dataclasses.dataclass(frozen=True)
class Rotation:
    """The copies of a candidate, and what could not be copied.

    Attributes:
        copies: what is to be called in turn, the original first.
        bytes_per_call: bytes of cache that the storages of one copy take.
        left_warm: what calls may still find in the cache, each in words, such as
            ``closure variable 'x'`` for a tensor that is the same one in every call. Variables are
            searched of functions that are held or referred to, not of methods called on an object.
    """

    copies: tuple[Candidate, ...]
    bytes_per_call: int
    left_warm: tuple[str, ...]


def rotate(
    candidate: Candidate,
    device: torch.device,
    working_set_bytes: int,
    max_copies: int = 65_536,
) -> Rotation:
    """Copies a candidate until the other copies hold a working set between two uses of one.

    Tensors in the arguments and in the callable (a module, a bound method, a partial or an object)
    are copied by storage, so that aliases stay aliases within a copy. Each keeps dtype, shape,
    strides, offset and ``requires_grad``; what autograd computed becomes a leaf, and gradients are
    not copied. A call that moves the working set by itself is not copied at all.

    Args:
        candidate: what is to be copied.
        device: tensors on it rotate; those elsewhere are shared by all copies.
        working_set_bytes: bytes of other data that push a copy out of the cache.
        max_copies: copies made at most, the original included.

    Returns:
        The copies, and what the calls may still find in the cache.

    Raises:
        ValueError: if an argument cannot be copied, or ``setup`` refers to a tensor that rotates,
            as it would then reset the original only.
        torch.OutOfMemoryError: if the copies do not fit on the device.
    """
    rotating = [
        found
        for found in reachable(owned(candidate))
        if isinstance(found, torch.Tensor) and _is_on(found, device) and is_plain(found)
    ]
    storages = {_key(tensor): tensor.untyped_storage() for tensor in rotating}
    bytes_per_call = sum(
        max(storage.nbytes(), _CACHE_LINE) for storage in storages.values() if storage.nbytes()
    )
    left_warm = [*_special_tensors(candidate, device), *_variables_on(candidate, device)]
    if bytes_per_call == 0:
        reasons = left_warm or ["no tensor in the arguments"]
        return Rotation((candidate,), 0, _distinct(reasons))
    needed = 1
    if bytes_per_call < working_set_bytes:
        needed += -(-working_set_bytes // bytes_per_call)
    if needed > max_copies:
        left_warm.append(
            f"{max_copies} copies of {bytes_per_call} bytes are less than the {working_set_bytes} "
            "bytes that push a copy out of the cache"
        )
    count = min(needed, max_copies)
    if count > 1:
        _check_setup(candidate, storages)
    copies = (candidate, *_copies(candidate, rotating, storages, count - 1))
    return Rotation(copies, bytes_per_call, _distinct(left_warm))


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _key(tensor: torch.Tensor) -> int:
    """A storage's identity; its address would not tell empty ones apart."""
    return int(tensor.untyped_storage()._cdata)


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def _special_tensors(candidate: Candidate, device: torch.device) -> Iterator[str]:
    for name, root in owned(candidate).items():
        for found in reachable(root):
            if isinstance(found, torch.Tensor) and _is_on(found, device) and not is_plain(found):
                kind = str(found.layout).removeprefix("torch.")
                yield f"tensor of type {type(found).__name__} ({kind}) in {name}"


def _variables_on(candidate: Candidate, device: torch.device) -> Iterator[str]:
    for name, tensor in tensors_by_variable(owned(candidate)):
        if _is_on(tensor, device):
            yield name


def _check_setup(candidate: Candidate, storages: dict[int, torch.UntypedStorage]) -> None:
    referred = (
        (f"{name} of setup", tensor) for name, tensor in tensors_by_variable(candidate.setup)
    )
    held = (("setup", found) for found in reachable(candidate.setup))
    for name, found in (*referred, *held):
        if isinstance(found, torch.Tensor) and is_plain(found) and _key(found) in storages:
            raise ValueError(
                f"setup must not refer to the arguments of {candidate.name!r} with cache='rotate', "
                f"which calls it on copies of them, got one in {name}; use cache='cold'"
            )


def _copies(
    candidate: Candidate,
    rotating: list[torch.Tensor],
    storages: dict[int, torch.UntypedStorage],
    count: int,
) -> Iterator[Candidate]:
    if count == 0:
        return
    buffers = {key: _repeated(storage, count) for key, storage in storages.items()}
    rotated = {id(tensor) for tensor in rotating}
    shared: dict[int, object] = {
        id(found): found
        for found in reachable(owned(candidate))
        if isinstance(found, (torch.Tensor, *_HANDLES)) and id(found) not in rotated
    }
    subject = subject_of(candidate.fn)
    if not any(id(found) in rotated for found in reachable(subject)):
        shared[id(subject)] = subject  # many a callable cannot be copied, and this one need not be
    for index in range(count):
        slices = {
            key: _slice(buffers[key], storage.nbytes(), index) for key, storage in storages.items()
        }
        memo = shared | {
            id(tensor): _on_storage(tensor, slices[_key(tensor)]) for tensor in rotating
        }
        yield _copy(candidate, rotating, memo)


def _repeated(storage: torch.UntypedStorage, count: int) -> torch.UntypedStorage:
    """All the copies of a storage in one allocation, filled by one kernel."""
    source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    stride = _stride(storage.nbytes())
    buffer = torch.empty((count, stride), dtype=torch.uint8, device=storage.device)
    buffer[:, : source.numel()].copy_(source)
    return buffer.untyped_storage()


def _stride(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _slice(buffer: torch.UntypedStorage, size: int, index: int) -> torch.UntypedStorage:
    """A storage of its own on part of a buffer, which it keeps alive and cannot outgrow."""
    if size == 0:  # results are written to empty tensors by resizing them, which a slice refuses
        return torch.empty(0, device=buffer.device).untyped_storage()
    start = index * _stride(size)
    part: torch.UntypedStorage = buffer[start : start + size]
    return part


def _on_storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """A leaf like the tensor on another storage.

    It is set on the storage, as views of one buffer would share its version, and with that every
    in-place operation on one copy would invalidate what autograd saved of the others.
    """
    new = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    new.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_conj():
        new = new.conj()
    if tensor.is_neg():
        new = torch._neg_view(new)
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)


def _copy(candidate: Candidate, rotating: list[torch.Tensor], memo: dict[int, Any]) -> Candidate:
    try:
        for tensor in rotating:
            memo[id(tensor)].__dict__.update(copy.deepcopy(tensor.__dict__, memo))
        original: tuple[Any, ...] = (
            subject_of(candidate.fn),
            candidate.args,
            dict(candidate.kwargs),
        )
        subject, args, kwargs = copy.deepcopy(original, memo)
    except Exception as error:  # whatever the objects' own code raises
        raise ValueError(
            f"cache='rotate' copies what {candidate.name!r} is called with, which must allow "
            f"copy.deepcopy, got {_failed_on(error)} ({error}); use cache='cold'"
        ) from error
    if subject_of(candidate.fn) is not candidate.fn:
        subject = getattr(subject, candidate.fn.__name__)
    return candidate.but(fn=subject, args=args, kwargs=kwargs)


def _failed_on(error: Exception) -> str:
    """The type of the object on which deepcopy failed: that of its innermost call."""
    name = "an object"
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is copy.deepcopy.__code__:
            name = type(traceback.tb_frame.f_locals["x"]).__name__
        traceback = traceback.tb_next
    return name
