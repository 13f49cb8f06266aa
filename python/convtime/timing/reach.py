"""The one walk over what a callable holds and refers to: which tensors a call may use.

Nothing of a caller's code runs: neither properties nor ``__getattr__`` are asked.
"""

from __future__ import annotations

import collections
import dis
import functools
import inspect
import types
from collections.abc import Iterator

import torch

from convtime.timing.candidate import Candidate

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # other classes may hold more than their storage
_ATOMIC = (type(None), bool, int, float, complex, str, bytes)
_NOT_FOLLOWED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
# Of functions and types, whose answers are asked for in each call that is timed.
_REMEMBERED = 4096

_AnyFunction = types.FunctionType | types.BuiltinFunctionType


def tensors_of(candidate: Candidate) -> Iterator[torch.Tensor]:
    """Tensors that a candidate holds, then those that its functions refer to by variables."""
    held = owned(candidate)
    for found in reachable(held):
        if isinstance(found, torch.Tensor):
            yield found
        elif isinstance(found, torch.jit.ScriptModule):  # whose tensors are not Python's
            yield from found.parameters(recurse=False)
            yield from found.buffers(recurse=False)
    for _, tensor in tensors_by_variable(held):
        yield tensor


def owned(candidate: Candidate) -> dict[str, object]:
    """What a candidate is called with, by the name that a caller knows it by."""
    return {
        "fn": subject_of(candidate.fn),
        **{f"args[{index}]": arg for index, arg in enumerate(candidate.args)},
        **{f"kwargs[{name!r}]": arg for name, arg in candidate.kwargs.items()},
    }


def subject_of(fn: object) -> object:
    """What of a callable can be copied: of a tensor's own method, which cannot, the tensor."""
    if isinstance(fn, types.BuiltinFunctionType) and isinstance(fn.__self__, torch.Tensor):
        return fn.__self__
    return fn


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether storage, dtype, size, strides and offset are all that makes up the tensor."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_nested)
    )


def reachable(root: object) -> Iterator[object]:
    """Every object that a deepcopy of the root comes across, in the order that it does."""
    seen: dict[int, object] = {}  # holds the objects too: ids are used again otherwise
    pending = [root]
    while pending:
        found = pending.pop()
        if isinstance(found, _ATOMIC) or id(found) in seen:
            continue
        seen[id(found)] = found
        yield found
        pending.extend(reversed(list(_children(found))))


def _children(parent: object) -> Iterator[object]:
    if isinstance(parent, _NOT_FOLLOWED) or _is_torchs_own(parent):
        return
    if isinstance(parent, torch.Tensor) and not is_plain(parent):
        return
    if isinstance(parent, dict):
        yield from parent.keys()
        yield from parent.values()
    elif isinstance(parent, list | tuple | set | frozenset | collections.deque):
        yield from parent
    yield from dict(getattr(parent, "__dict__", {})).values()
    for name in _member_names(type(parent)):  # type: ignore[arg-type]  # types can be hashed
        yield getattr(parent, name, None)


@functools.lru_cache(_REMEMBERED)
def _member_names(kind: type) -> tuple[str, ...]:
    """Slots, and what types written in C hold: a method's owner, a partial's arguments."""
    return tuple(
        member.__name__
        for base in kind.__mro__
        for member in vars(base).values()
        if isinstance(member, types.MemberDescriptorType)
    )


def _is_torchs_own(found: object) -> bool:
    """Whether this is inside torch's machinery (a compiler's state), with nothing of a caller's."""
    return type(found).__module__.startswith("torch._") and not isinstance(
        found, torch.nn.Module | torch.Tensor
    )


def tensors_by_variable(root: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that functions below the root refer to, which a deepcopy leaves as they are.

    Each comes with the variable in words, such as ``closure variable 'x'``.
    """
    pending = list(_functions_in(root))
    seen: dict[int, object] = {}
    while pending:
        function = pending.pop()
        if id(function) in seen or _is_from_torch(function):
            continue
        seen[id(function)] = function
        for name, value in _variables_of(function):
            pending.extend(_functions_in(value))
            for found in reachable(value):
                if isinstance(found, torch.Tensor):
                    yield name, found


def _functions_in(root: object) -> Iterator[_AnyFunction]:
    """The functions that run when something below the root is called."""
    for found in reachable(root):
        if isinstance(found, _AnyFunction):
            yield found
        else:
            yield from _call_methods(type(found))  # type: ignore[arg-type]  # likewise


@functools.lru_cache(_REMEMBERED)
def _call_methods(kind: type) -> tuple[types.FunctionType, ...]:
    methods = (inspect.getattr_static(kind, name, None) for name in ("forward", "__call__"))
    return tuple(method for method in methods if isinstance(method, types.FunctionType))


def _is_from_torch(function: _AnyFunction) -> bool:
    """Whether it is library code, whose variables are none of the caller's data."""
    return isinstance(function, types.FunctionType) and (
        (function.__module__ or "").partition(".")[0] == "torch"
    )


def _variables_of(function: _AnyFunction) -> Iterator[tuple[str, object]]:
    if isinstance(function, types.BuiltinFunctionType):
        if isinstance(function.__self__, torch.Tensor):
            yield f"tensor of the method {function.__name__!r}", function.__self__
        return
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield f"closure variable {name!r}", _content(cell)
    for name in _globals_read(code):
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


@functools.lru_cache(_REMEMBERED)
def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals in a function and those inside of it, sorted.

    ``inspect.getclosurevars`` would take an attribute of the same name for a global.
    """
    names = {
        str(instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname == "LOAD_GLOBAL"
    }
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return tuple(sorted(names.union(*map(_globals_read, inner))))
