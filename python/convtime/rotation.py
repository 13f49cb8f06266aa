"""Rotation: gives each call other copies of its tensors, so that it finds none of them cached.

The method is that of flashinfer's rotating buffers: by the time a copy's turn comes again, the
calls on the other copies have moved several times the cache's size through it. Unlike a flush,
this costs no time between calls, and leaves in the cache what the call itself does not own.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import dis
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from convtime.candidate import Candidate

_ALIGNMENT = 512  # bytes; that of the CUDA allocator, on which kernels choose their loads
_CACHE_LINE = 128  # bytes; what a smaller storage takes of the cache
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # other classes may hold more than their storage
_ATOMIC = (type(None), bool, int, float, complex, str, bytes)
_NOT_FOLLOWED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
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
    found = [one for one in _reachable(_owned(candidate)) if isinstance(one, torch.Tensor)]
    rotating = [one for one in found if _is_on(one, device) and _can_rotate(one)]
    storages = {_key(one): one.untyped_storage() for one in rotating}
    bytes_per_call = sum(
        max(one.nbytes(), _CACHE_LINE) for one in storages.values() if one.nbytes()
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


def _can_rotate(tensor: torch.Tensor) -> bool:
    """Whether storage, dtype, size, strides and offset are all that makes up the tensor."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_nested)
    )


def _subject(fn: object) -> object:
    """What of a callable can be copied: of a tensor's own method, which cannot, the tensor."""
    owner = getattr(fn, "__self__", None)
    if isinstance(fn, types.BuiltinFunctionType) and isinstance(owner, torch.Tensor):
        return owner
    return fn


def _owned(candidate: Candidate) -> dict[str, object]:
    """What a candidate is called with, by the name that a caller knows it by."""
    return {
        "fn": _subject(candidate.fn),
        **{f"args[{index}]": one for index, one in enumerate(candidate.args)},
        **{f"kwargs[{name!r}]": one for name, one in candidate.kwargs.items()},
    }


def _reachable(root: object) -> Iterator[object]:
    """Every object that a deepcopy of the root comes across, found without running its code."""
    seen: dict[int, object] = {}  # holds the objects too: ids are used again otherwise
    pending = [root]
    while pending:
        one = pending.pop()
        if isinstance(one, _ATOMIC) or id(one) in seen:
            continue
        seen[id(one)] = one
        yield one
        pending.extend(_children(one))


def _children(one: object) -> Iterator[object]:
    if isinstance(one, _NOT_FOLLOWED) or _is_torchs_own(one):
        return
    if isinstance(one, torch.Tensor) and not _can_rotate(one):
        return
    if isinstance(one, dict):
        yield from one.keys()
        yield from one.values()
    elif isinstance(one, list | tuple | set | frozenset | collections.deque):
        yield from one
    yield from dict(getattr(one, "__dict__", {})).values()
    for base in type(one).__mro__:
        for member in vars(base).values():
            # Slots, and what types written in C hold: a method's owner, a partial's arguments.
            if isinstance(member, types.MemberDescriptorType):
                yield getattr(one, member.__name__, None)


def _is_torchs_own(one: object) -> bool:
    """Whether this is inside torch's machinery (a compiler's state), with nothing of a caller's."""
    return type(one).__module__.startswith("torch._") and not isinstance(
        one, torch.nn.Module | torch.Tensor
    )


def _functions_in(root: object) -> Iterator[types.FunctionType | types.BuiltinFunctionType]:
    """The functions that run when something below the root is called."""
    for one in _reachable(root):
        if isinstance(one, types.FunctionType | types.BuiltinFunctionType):
            yield one
            continue
        for name in ("forward", "__call__"):
            method = inspect.getattr_static(type(one), name, None)
            if isinstance(method, types.FunctionType):
                yield method


def _tensors_by_variable(root: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that functions below the root refer to, which a deepcopy leaves as they are."""
    pending = list(_functions_in(root))
    seen: dict[int, object] = {}
    while pending:
        function = pending.pop()
        if id(function) in seen or _is_from_torch(function):
            continue
        seen[id(function)] = function
        for name, value in _variables_of(function):
            pending.extend(_functions_in(value))
            for one in _reachable(value):
                if isinstance(one, torch.Tensor):
                    yield name, one


def _is_from_torch(function: types.FunctionType | types.BuiltinFunctionType) -> bool:
    """Whether it is library code, whose variables are none of the caller's data."""
    return isinstance(function, types.FunctionType) and (
        (function.__module__ or "").partition(".")[0] == "torch"
    )


def _variables_of(
    function: types.FunctionType | types.BuiltinFunctionType,
) -> Iterator[tuple[str, object]]:
    if isinstance(function, types.BuiltinFunctionType):
        if isinstance(function.__self__, torch.Tensor):
            yield f"tensor of the method {function.__name__!r}", function.__self__
        return
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield f"closure variable {name!r}", _content(cell)
    for name in sorted(_globals_read(code)):
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]
    for name, value in _defaults(function).items():
        yield f"default of the parameter {name!r}", value


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


def _defaults(function: types.FunctionType) -> dict[str, object]:
    values = function.__defaults__ or ()
    count = function.__code__.co_argcount
    names = function.__code__.co_varnames[count - len(values) : count]
    return dict(zip(names, values, strict=True)) | (function.__kwdefaults__ or {})


def _globals_read(code: types.CodeType) -> set[str]:
    """Names of globals in a function and those inside of it.

    ``inspect.getclosurevars`` would take an attribute of the same name for a global.
    """
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return names.union(
        *(_globals_read(one) for one in code.co_consts if isinstance(one, types.CodeType))
    )


def _special_tensors(candidate: Candidate, device: torch.device) -> Iterator[str]:
    for name, root in _owned(candidate).items():
        for one in _reachable(root):
            if isinstance(one, torch.Tensor) and _is_on(one, device) and not _can_rotate(one):
                kind = str(one.layout).removeprefix("torch.")
                yield f"tensor of type {type(one).__name__} ({kind}) in {name}"


def _variables_on(candidate: Candidate, device: torch.device) -> Iterator[str]:
    for name, tensor in _tensors_by_variable(_owned(candidate)):
        if _is_on(tensor, device):
            yield name


def _check_setup(candidate: Candidate, storages: dict[int, torch.UntypedStorage]) -> None:
    named = ((f"{name} of setup", one) for name, one in _tensors_by_variable(candidate.setup))
    owned = (("setup", one) for one in _reachable(candidate.setup))
    for name, one in (*named, *owned):
        if isinstance(one, torch.Tensor) and _can_rotate(one) and _key(one) in storages:
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
    rotated = {id(one) for one in rotating}
    shared: dict[int, object] = {
        id(one): one
        for one in _reachable(_owned(candidate))
        if isinstance(one, (torch.Tensor, *_HANDLES)) and id(one) not in rotated
    }
    subject = _subject(candidate.fn)
    if not any(id(one) in rotated for one in _reachable(subject)):
        shared[id(subject)] = subject  # many a callable cannot be copied, and this one need not be
    for index in range(count):
        slices = {
            key: _slice(buffers[key], storage.nbytes(), index) for key, storage in storages.items()
        }
        memo = shared | {id(one): _on_storage(one, slices[_key(one)]) for one in rotating}
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
        for one in rotating:
            memo[id(one)].__dict__.update(copy.deepcopy(one.__dict__, memo))
        original: tuple[Any, ...] = (_subject(candidate.fn), candidate.args, dict(candidate.kwargs))
        subject, args, kwargs = copy.deepcopy(original, memo)
    except Exception as error:  # whatever the objects' own code raises
        raise ValueError(
            f"cache='rotate' copies what {candidate.name!r} is called with, which must allow "
            f"copy.deepcopy, got {_failed_on(error)} ({error}); use cache='cold'"
        ) from error
    if _subject(candidate.fn) is not candidate.fn:
        subject = getattr(subject, candidate.fn.__name__)
    return dataclasses.replace(candidate, fn=subject, args=args, kwargs=kwargs)


def _failed_on(error: Exception) -> str:
    """The type of the object on which deepcopy failed: that of its innermost call."""
    name = "an object"
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is copy.deepcopy.__code__:
            name = type(traceback.tb_frame.f_locals["x"]).__name__
        traceback = traceback.tb_next
    return name
