"""Copies of a candidate: the same call on other storages, as complete as a deepcopy."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch

from convtime.timing.candidate import Candidate
from convtime.timing.sampling.object_graph import (
    CLOSURE,
    DEFAULT,
    GLOBAL,
    Variable,
    Walk,
    copyable_part,
    is_plain,
    objects_below,
    parts_of,
    positional_defaults,
    rebinds_variables,
    tensors_by_variable,
    variables_of,
)

# A copy of the first ones would differ from the original, or fail. An array is not one of the
# tensors that are copied, and may be large.
_SHARED = (
    torch.Generator,
    torch.Stream,
    torch.Event,
    torch.cuda.Stream,
    torch.cuda.Event,
    types.ModuleType,
    np.ndarray,
)
_ATOMIC = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout}
)

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)

#: Storages by identity, because empty ones have no distinct addresses.
Storages = Mapping[int, torch.UntypedStorage]


class UncopiableError(ValueError):
    """Raised if ``copy.deepcopy`` fails; names the object."""


class Original:
    """A candidate, with the tensors that each of its copies gets a copy of.

    Tensors in the arguments and in the callable (a module, a bound method, a partial or an object)
    are copied by storage, so that aliases remain aliases within a copy. If the callable is a
    function that rebinds no variables, the tensors in its variables are copied too. Each copy keeps
    dtype, shape, strides, offset and ``requires_grad``. Results of autograd become leaves, and
    gradients are not copied.

    Args:
        candidate: the candidate to copy.
        device: copies tensors on this device; all copies share the tensors on other devices.
        most_objects: stops the search after so many objects, if copies would take too long.
    """

    def __init__(
        self, candidate: Candidate, device: torch.device, most_objects: int = sys.maxsize
    ) -> None:
        self.candidate = candidate
        self.device = device
        self._most_objects = most_objects
        #: Whether a search stopped at its limit, so that there may be more objects.
        self.has_more_objects = False
        self._variables = self._variables_with_tensors()
        self.objects = list(self._below(self.roots_of(candidate)))
        tensors = [
            each
            for each in self.objects
            if isinstance(each, torch.Tensor) and is_on(each, device) and is_plain(each)
        ]
        self.storages: Storages = {_key(tensor): tensor.untyped_storage() for tensor in tensors}
        self._tensors = [_Tensor(tensor) for tensor in tensors]
        #: The original of each copied tensor, by the id of the copy.
        self.origins: dict[int, torch.Tensor] = {}
        copied = {id(tensor) for tensor in tensors}
        self._shared: dict[int, object] = {
            id(one): one
            for one in self.objects
            if isinstance(one, (torch.Tensor, *_SHARED)) and id(one) not in copied
        }
        subject = copyable_part(candidate.fn)
        if not any(id(one) in copied for one in self._below(subject)):
            self._shared[id(subject)] = subject  # often not copyable, and need not be copied
        self.is_flat = all(map(self._is_known, self._values()))

    def _below(self, root: object) -> Iterator[object]:
        """Yield the objects that a deepcopy of the root visits, up to the limit."""
        walk = Walk(self._most_objects)
        yield from walk.below([root])
        self.has_more_objects |= walk.ended_early

    def _tensors_below(self, root: object) -> Iterator[torch.Tensor]:
        """Yield the tensors on the device among these objects."""
        for each in self._below(root):
            if isinstance(each, torch.Tensor) and is_on(each, self.device):
                yield each

    def _is_known(self, value: object) -> bool:
        """Whether the value can be copied without deepcopy, which does not copy functions."""
        if type(value) in _ATOMIC or type(value) in _FUNCTIONS or id(value) in self._shared:
            return True
        return any(value is one.original and not one.attributes for one in self._tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the storages that each copy gets a copy of."""
        return sum(storage.nbytes() for storage in self.storages.values())

    @functools.cached_property
    def left_out(self) -> tuple[str, ...]:
        """Tensors on the device that all copies share, described like ``closure variable 'x'``.

        The search covers the variables of functions that are held or referred to, but not of
        methods that are called on an object.
        """
        return tuple(dict.fromkeys(self._tensors_left_out()))

    def _tensors_left_out(self) -> Iterator[str]:
        for name, root in self.roots_of(self.candidate).items():
            for tensor in self._tensors_below(root):
                if not is_plain(tensor):
                    kind = str(tensor.layout).removeprefix("torch.")
                    yield f"tensor of type {type(tensor).__name__} ({kind}) in {name}"
        holder: object = parts_of(self.candidate)
        if self._variables:  # the function's variables are copied, but not those of other functions
            variables = variables_of(_function_of(self.candidate))
            holder = [*_arguments(self.candidate), *(value for _, value in variables)]
        for name, tensor in tensors_by_variable(holder, self._below):
            if is_on(tensor, self.device):
                yield name

    def _variables_with_tensors(self) -> dict[Variable, object]:
        """Variables whose values can be replaced in a copy of the candidate's function.

        There are none if the function rebinds variables, or if there is a setup, which may rebind
        them: the caller or the other copies would see the change.
        """
        function = self.candidate.fn
        if (
            not isinstance(function, types.FunctionType)
            or self.candidate.before is not None
            or rebinds_variables(function.__code__)
        ):
            return {}
        return {
            name: value
            for name, value in variables_of(function)
            if any(True for _ in self._tensors_below(value))
        }

    def roots_of(self, candidate: Candidate) -> dict[str, object]:
        """Objects that belong to this candidate, or to a copy, by the name the caller uses."""
        own = parts_of(candidate)
        if self._variables:
            referred = variables_of(_function_of(candidate))
            own |= {str(name): value for name, value in referred if name in self._variables}
        return own

    def names_of(self, keys: set[int]) -> list[str]:
        """Names of the arguments that use these storages."""
        return [
            name
            for name, root in self.roots_of(self.candidate).items()
            if any(
                isinstance(each, torch.Tensor) and is_plain(each) and _key(each) in keys
                for each in objects_below(root)
            )
        ]

    @functools.cached_property
    def in_setup(self) -> str:
        """Describe where ``setup`` refers to a storage that is copied; empty if it does not.

        Such a setup would reset only the original.
        """
        setup = self.candidate.before
        referred = (
            (f"{name} of setup", tensor) for name, tensor in tensors_by_variable(setup, self._below)
        )
        held = (("setup", each) for each in self._below(setup))
        for name, each in (*referred, *held):
            if isinstance(each, torch.Tensor) and is_plain(each) and _key(each) in self.storages:
                return name
        return ""

    def on(self, storages: Storages) -> Candidate:
        """Return the candidate with its tensors on other storages, which have the same contents.

        Raises:
            UncopiableError: if the callable or an argument cannot be copied.
        """
        tensors = {id(one.original): one.on(storages[one.key]) for one in self._tensors}
        self.origins.update((id(tensors[id(one.original)]), one.original) for one in self._tensors)
        return self._on_tensors(tensors)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that each copy gets a copy of."""
        return [one.original for one in self._tensors]

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Candidate:
        """Return the candidate with its tensors replaced; their memory layout may change.

        Replaced tensors no longer share a storage. Those that ``change`` returns unchanged do.

        Args:
            change: returns the replacement of a tensor, without gradients.

        Raises:
            UncopiableError: if the callable or an argument cannot be copied.
        """
        return self._on_tensors({id(one.original): one.changed(change) for one in self._tensors})

    def _on_tensors(self, tensors: dict[int, torch.Tensor]) -> Candidate:
        """Return the candidate with its tensors replaced, by the id of the original tensor."""
        if self.is_flat:
            return self._with(*(tensors.get(id(value), value) for value in self._values()))
        memo = self._shared | tensors
        try:
            for one in self._tensors:
                if one.attributes:
                    attributes = copy.deepcopy(one.attributes, memo)
                    tensors[id(one.original)].__dict__.update(attributes)
            return self._with(*copy.deepcopy(self._values(), memo))
        except Exception as error:  # the objects' code may raise anything
            raise UncopiableError(f"{_failed_on(error)} ({error})") from error

    @functools.cached_property
    def _partial(self) -> functools.partial[Any] | None:
        """The callable if it is a partial: its parts are copied, since most need no deepcopy."""
        fn = self.candidate.fn
        if type(fn) is functools.partial and not fn.__dict__ and id(fn) not in self._shared:
            return fn
        return None

    def _values(self) -> list[Any]:
        partial = self._partial
        return [
            *(
                [copyable_part(self.candidate.fn)]
                if partial is None
                else [partial.func, *partial.args, *partial.keywords.values()]
            ),
            *_arguments(self.candidate),
            *self._variables.values(),
        ]

    def _with(self, subject: Any, *values: Any) -> Candidate:
        fn, partial = self.candidate.fn, self._partial
        rest = iter(values)
        if partial is not None:
            own = tuple(itertools.islice(rest, len(partial.args)))
            keywords = dict(zip(partial.keywords, rest, strict=False))
            subject = functools.partial(subject, *own, **keywords)
        elif copyable_part(fn) is not fn:
            subject = getattr(subject, fn.__name__)
        args = tuple(itertools.islice(rest, len(self.candidate.args)))
        kwargs = dict(zip(self.candidate.kwargs, rest, strict=False))
        variables = dict(zip(self._variables, rest, strict=True))
        if variables:
            subject = _with_variables(_function_of(self.candidate), variables)
        return self.candidate.but(fn=subject, args=args, kwargs=kwargs)


def is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether a tensor is on a device; a device without an index matches any index."""
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _arguments(candidate: Candidate) -> tuple[Any, ...]:
    return (*candidate.args, *candidate.kwargs.values())


def _function_of(candidate: Candidate) -> types.FunctionType:
    return cast(types.FunctionType, candidate.fn)


def _with_variables(
    function: types.FunctionType, values: Mapping[Variable, object]
) -> types.FunctionType:
    """Return the function with new values of some variables."""
    code = function.__code__
    in_module = {
        variable.name: value for variable, value in values.items() if variable.kind == GLOBAL
    }
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    new = types.FunctionType(
        code,
        function.__globals__ | in_module if in_module else function.__globals__,
        function.__name__,
        tuple(
            values.get(Variable(DEFAULT, name), value)
            for name, value in positional_defaults(function).items()
        ),
        tuple(
            types.CellType(values[Variable(CLOSURE, name)])
            if Variable(CLOSURE, name) in values
            else cell
            for name, cell in cells
        ),
    )
    new.__kwdefaults__ = {
        name: values.get(Variable(DEFAULT, name), value)
        for name, value in (function.__kwdefaults__ or {}).items()
    }
    new.__dict__.update(function.__dict__)
    return new


class _Tensor:
    """A tensor to copy, with its properties looked up once for all copies."""

    def __init__(self, original: torch.Tensor) -> None:
        self.original = original
        self.key = _key(original)
        self.attributes = original.__dict__
        self._view = original.storage_offset(), original.size(), original.stride()
        self._is_parameter = type(original) is torch.nn.Parameter
        self._requires_grad = original.requires_grad

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a leaf like it on another storage.

        Uses ``set_``, because views of one buffer would share a version counter: every in-place
        operation on one copy would invalidate the tensors that autograd saved for the others.
        """
        new = torch.empty(0, dtype=self.original.dtype, device=self.original.device)
        new.set_(storage, *self._view)
        if self.original.is_conj():
            new = new.conj()
        if self.original.is_neg():
            new = torch._neg_view(new)
        return self._asking_for_gradients(new)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return its replacement, or the tensor itself if it is unchanged."""
        with torch.no_grad():
            new = change(self.original)
        return new if new is self.original else self._asking_for_gradients(new.detach())

    def _asking_for_gradients(self, new: torch.Tensor) -> torch.Tensor:
        if self._is_parameter:
            return torch.nn.Parameter(new, requires_grad=self._requires_grad)
        return new.requires_grad_() if self._requires_grad else new


def _failed_on(error: Exception) -> str:
    """Type of the object that deepcopy failed on: the argument of its innermost call."""
    name = "an object"
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is copy.deepcopy.__code__:
            name = type(traceback.tb_frame.f_locals["x"]).__name__
        traceback = traceback.tb_next
    return name
