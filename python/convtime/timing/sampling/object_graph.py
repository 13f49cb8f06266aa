"""Find every tensor that a call may use, by walking the objects that a callable refers to.

The walk never runs the caller's code: no properties, no ``__getattr__``, and no ``__iter__`` that a
container class overrides.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from convtime.timing.candidate import Candidate


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Run a block outside the caller's modes, so that its tensors are real tensors.

    This disables modes that intercept functions and operators (a default device, FakeTensorMode),
    inference mode and autocast. A tensor must still specify its dtype, because the default dtype
    is not a mode.
    """
    with (
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # other classes may hold more than their storage
_ATOMIC = frozenset({type(None), bool, int, float, complex, str, bytes})
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
# Modules of libraries whose objects and functions hold no data of the caller: compilers' states.
_COMPILERS = (
    "torch._",
    "triton.backends",
    "triton.compiler",
    "triton.experimental.gluon._runtime",
    "triton.runtime",
)
_LIBRARIES = ("torch", "triton")
_NOT_FOLLOWED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
# Cached answers about functions and types, which every timing needs again.
_CACHED_ANSWERS = 4096

_AnyFunction = types.FunctionType | types.BuiltinFunctionType


class Walk:
    """Visit each object once, nearest first.

    Args:
        limit: maximum number of objects to visit, including numbers and strings.
    """

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._left = limit
        self._seen: dict[int, object] = {}  # keeps the objects alive, so that no id is reused

    @property
    def ended_early(self) -> bool:
        """Whether the walk reached its limit, so that there may be more objects."""
        return self._left == 0

    def below(self, roots: Iterable[object]) -> Iterator[object]:
        """Yield the objects that a deepcopy of the roots visits, except numbers and strings."""
        pending = collections.deque([self._look_at(roots)])
        while pending:
            for each in pending.popleft():
                if id(each) in self._seen:
                    continue
                self._seen[id(each)] = each
                yield each
                pending.append(self._look_at(itertools.chain.from_iterable(_contents(each))))

    def _look_at(self, objects: Iterable[object]) -> list[object]:
        # All at once, because other threads may modify the container during iteration.
        some = list(itertools.islice(objects, self._left))
        self._left -= len(some)
        return [each for each in some if type(each) not in _ATOMIC]


def tensors_of(candidate: Candidate, walk: Walk) -> Iterator[torch.Tensor]:
    """Yield the tensors that a candidate holds, then those in the variables of its functions."""
    searched: dict[int, _AnyFunction] = {}
    roots: list[object] = [parts_of(candidate)]
    while roots:
        functions: dict[int, _AnyFunction] = {}
        for each in walk.below(roots):
            if isinstance(each, torch.Tensor):
                yield each
            elif isinstance(each, torch.jit.ScriptModule):  # its tensors are stored in C++
                yield from each.parameters(recurse=False)
                yield from each.buffers(recurse=False)
            functions.update((id(function), function) for function in _functions_of(each))
        roots = [
            value
            for key, function in functions.items()
            if key not in searched
            for _, value in variables_of(function)
        ]
        searched |= functions


def some_tensors(candidate: Candidate, limit: int) -> tuple[list[torch.Tensor], bool]:
    """Return what :func:`tensors_of` finds among ``limit`` objects, and whether that is all."""
    walk = Walk(limit)
    tensors = list(tensors_of(candidate, walk))
    return tensors, not walk.ended_early


def parts_of(candidate: Candidate) -> dict[str, object]:
    """Return the callable and the arguments of a candidate, by the name the caller uses."""
    return {
        "fn": copyable_part(candidate.fn),
        **{f"args[{index}]": arg for index, arg in enumerate(candidate.args)},
        **{f"kwargs[{name!r}]": arg for name, arg in candidate.kwargs.items()},
    }


def copyable_part(fn: object) -> object:
    """Return the part of a callable that can be copied: for a tensor's bound method, the tensor."""
    if isinstance(fn, types.BuiltinFunctionType) and isinstance(fn.__self__, torch.Tensor):
        return fn.__self__
    return fn


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether storage, dtype, size, strides and offset define the tensor completely."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_nested)
    )


def objects_below(root: object) -> Iterator[object]:
    """Yield every object that a deepcopy of the root visits, except numbers and strings."""
    return Walk().below([root])


def contents_of(parent: object) -> tuple[object, ...]:
    """Return everything that an object holds, including numbers and strings."""
    return tuple(itertools.chain.from_iterable(_contents(parent)))


def holds_still(parent: object, contents: tuple[object, ...]) -> bool:
    """Whether an object still holds the same objects, and equal numbers and strings."""
    now = contents_of(parent)
    return len(now) == len(contents) and all(
        one is other or (type(one) is type(other) and type(one) in _ATOMIC and one == other)
        for one, other in zip(now, contents, strict=True)
    )


def _contents(parent: object) -> Iterator[Iterable[object]]:
    if isinstance(parent, _NOT_FOLLOWED) or _is_of_a_compiler(parent):
        return
    if isinstance(parent, torch.Tensor) and not is_plain(parent):
        return
    kind = type(parent)
    if issubclass(kind, dict):
        yield dict.keys(parent)  # type: ignore[arg-type]
        yield dict.values(parent)  # type: ignore[arg-type]
    for container in _CONTAINERS:
        if issubclass(kind, container):
            yield container.__iter__(parent)
    yield _attributes(parent).values()
    yield _member_values(parent)


def _attributes(parent: object) -> dict[str, object]:
    try:
        attributes = object.__getattribute__(parent, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _member_values(parent: object) -> Iterator[object]:
    for member in _members(type(parent)):  # type: ignore[arg-type]  # types can be hashed
        with contextlib.suppress(AttributeError):  # a slot may have no value
            yield member.__get__(parent)


@functools.lru_cache(_CACHED_ANSWERS)
def _members(kind: type) -> tuple[types.MemberDescriptorType, ...]:
    """Slots, and the members of types written in C: a method's owner, a partial's arguments."""
    return tuple(
        member
        for base in kind.__mro__
        for member in vars(base).values()
        if isinstance(member, types.MemberDescriptorType)
    )


def _is_of_a_compiler(instance: object) -> bool:
    """Whether this is internal to a compiler, without any of the caller's data."""
    module = getattr(type(instance), "__module__", None)  # a class may set this to anything
    return (
        isinstance(module, str)
        and module.startswith(_COMPILERS)
        and not isinstance(instance, torch.nn.Module | torch.Tensor)
    )


def tensors_by_variable(
    root: object, objects_of: Callable[[object], Iterable[object]] = objects_below
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors that functions below the root refer to; a deepcopy does not copy them.

    Each comes with a description of its variable, such as ``closure variable 'x'``. ``objects_of``
    yields the objects below an object.
    """
    pending = [function for each in objects_of(root) for function in _functions_of(each)]
    seen: dict[int, object] = {}
    while pending:
        function = pending.pop()
        if id(function) in seen:
            continue
        seen[id(function)] = function
        for name, value in variables_of(function):
            for each in objects_of(value):
                pending.extend(_functions_of(each))
                if isinstance(each, torch.Tensor):
                    yield str(name), each


def _functions_of(instance: object) -> Iterator[_AnyFunction]:
    """The functions that run when an object is called, except those of torch and triton."""
    if isinstance(instance, _AnyFunction):
        functions: tuple[_AnyFunction, ...] = (instance,)
    else:
        functions = _call_methods(type(instance))  # type: ignore[arg-type]  # types can be hashed
    return (function for function in functions if not _is_from_a_library(function))


@functools.lru_cache(_CACHED_ANSWERS)
def _call_methods(kind: type) -> tuple[types.FunctionType, ...]:
    methods = (inspect.getattr_static(kind, name, None) for name in ("forward", "__call__"))
    return tuple(method for method in methods if isinstance(method, types.FunctionType))


def _is_from_a_library(function: _AnyFunction) -> bool:
    """Whether it is library code, whose variables hold none of the caller's data."""
    return isinstance(function, types.FunctionType) and (
        (function.__module__ or "").partition(".")[0] in _LIBRARIES
    )


#: Kinds of variables: of the enclosing function, of the function's module, and parameters.
CLOSURE, GLOBAL, DEFAULT = "closure variable", "global", "default of the parameter"


class Variable(NamedTuple):
    """Kind and name of the variable that refers to an object, such as ``closure variable 'x'``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


def variables_of(function: _AnyFunction) -> Iterator[tuple[Variable, object]]:
    """Yield the variables that a function and its nested functions refer to, with their values."""
    if isinstance(function, types.BuiltinFunctionType):
        if isinstance(function.__self__, torch.Tensor):
            yield Variable("tensor of the method", function.__name__), function.__self__
        return
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield Variable(CLOSURE, name), _content(cell)
    for name in _globals_read(code):
        if name in function.__globals__:
            yield Variable(GLOBAL, name), function.__globals__[name]
    for name, value in {**positional_defaults(function), **(function.__kwdefaults__ or {})}.items():
        yield Variable(DEFAULT, name), value


@functools.lru_cache(_CACHED_ANSWERS)
def rebinds_variables(code: types.CodeType) -> bool:
    """Whether a function or its nested functions assign to closure or global variables."""
    return any(
        operation in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (operation in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars)
        for operation, name in _instructions(code)
    )


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not assigned yet
        return None


def positional_defaults(function: types.FunctionType) -> dict[str, object]:
    """Return the default values of a function's positional parameters, by name."""
    values = function.__defaults__ or ()
    count = function.__code__.co_argcount
    names = function.__code__.co_varnames[count - len(values) : count]
    return dict(zip(names, values, strict=True))


@functools.lru_cache(_CACHED_ANSWERS)
def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    """Names of the globals that a function and its nested functions read, sorted.

    ``inspect.getclosurevars`` also reports attributes that have the name of a global.
    """
    names = {str(name) for operation, name in _instructions(code) if operation == "LOAD_GLOBAL"}
    return tuple(sorted(names))


def _instructions(code: types.CodeType) -> Iterator[tuple[str, object]]:
    """Yield name and argument of the instructions of a function and its nested functions."""
    for instruction in dis.get_instructions(code):
        yield instruction.opname, instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)
