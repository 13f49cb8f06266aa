"""Structure of a result: its tensors and plain values, each with its position."""

from __future__ import annotations

import cmath
import dataclasses
import enum
import reprlib
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

_MOST_PARTS = 100_000
_DEEPEST = 200
_SCALARS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    enum.Enum,
    range,
    slice,
)
_MOST_LETTERS = 60  # of a value, or of a position, in a sentence
_CLOSE = 1.3e-6  # for a Python float, as for float32 in torch.testing.assert_close


@dataclasses.dataclass
class Structure:
    """The parts of a result.

    Attributes:
        tensors: tensors by position, such as ``['loss'][0]``; a result that is a single tensor has
            an empty position.
        values: plain values by position, and a description of each container.
        unknown: types of the parts that cannot be compared, by position.
    """

    tensors: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Container:
    """Description of a container: its type, and its keys or length."""

    kind: str
    keys: tuple[Any, ...] | int

    def __str__(self) -> str:
        if isinstance(self.keys, int):
            return f"a {self.kind} of {self.keys:,}"
        return f"a {self.kind} with {_SHORT.repr(list(self.keys))}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = _MOST_LETTERS


def shortened(place: str) -> str:
    """Shorten a position to fit into a sentence."""
    if len(place) <= _MOST_LETTERS:
        return place
    half = _MOST_LETTERS // 2
    return f"{place[:half]}…{place[-half:]}"


def structure_of(result: object) -> Structure:
    """Return the parts of a result, however nested."""
    found = Structure()
    _add(result, "", found, [])
    return found


def difference(expected: Structure, got: Structure, *, exact: bool) -> str:
    """Describe how the values of a result differ from the expected ones; empty if they do not.

    Of tensors, only the positions are compared.
    """
    for place, value in expected.values.items():
        if place not in got.values or not _equal(value, got.values[place], exact):
            return _told(place, got, value)
    for place in expected.tensors:
        if place not in got.tensors:
            return _told(place, got, "a tensor")
    for place in (*got.values, *got.tensors):
        if place not in expected.values and place not in expected.tensors:
            given = _in_words(got.values[place]) if place in got.values else "a tensor"
            return f"{_at(place)}it gives {given}, and the baseline does not"
    return ""


def _told(place: str, got: Structure, expected: Any) -> str:
    wanted = expected if expected == "a tensor" else _in_words(expected)
    if place in got.values:
        given = _in_words(got.values[place])
    elif place in got.tensors:
        given = "a tensor"
    else:
        given = got.unknown.get(place, "nothing")
    return f"{_at(place)}it gives {given}, not {wanted}"


def _at(place: str) -> str:
    return f"at {shortened(place)}, " if place else ""


def _in_words(value: object) -> str:
    return str(value) if isinstance(value, _Container) else _SHORT.repr(value)


def _equal(expected: Any, got: Any, exact: bool) -> bool:
    if not (_is_number(expected) and _is_number(got)):
        return type(expected) is type(got) and bool(expected == got)
    if exact and type(expected) is not type(got):
        return False
    if isinstance(expected, int) and isinstance(got, int):
        return expected == got
    if exact:  # as text, because 0.0 == -0.0, and NaN is not equal to itself
        return repr(expected) == repr(got)
    try:
        if cmath.isnan(expected) or cmath.isnan(got):
            return cmath.isnan(expected) and cmath.isnan(got)
        return cmath.isclose(expected, got, rel_tol=_CLOSE)
    except OverflowError:  # an integer may be larger than any float
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex) and not isinstance(value, bool | enum.Enum)


def _add(value: object, place: str, found: Structure, around: list[object]) -> None:
    parts = len(found.tensors) + len(found.values) + len(found.unknown)
    too_deep = len(around) > _DEEPEST or any(value is each for each in around)
    if parts >= _MOST_PARTS or too_deep:
        found.unknown[place] = "more of the same"
    elif isinstance(value, torch.Tensor):
        found.tensors[place] = value
    elif isinstance(value, np.ndarray | np.generic):
        _add_array(value, place, found)
    elif isinstance(value, _SCALARS):
        found.values[place] = value
    elif isinstance(value, Set):
        if all(isinstance(each, _SCALARS) for each in value):
            found.values[place] = frozenset(value)
        else:
            found.unknown[place] = type(value).__name__
    else:
        _add_container(value, place, found, [*around, value])


def _add_array(value: Any, place: str, found: Structure) -> None:
    try:
        found.tensors[place] = torch.from_numpy(np.ascontiguousarray(value))
    except (TypeError, ValueError):  # arrays of strings, objects or dates
        found.unknown[place] = f"an array of {value.dtype}"


def _add_container(value: Any, place: str, found: Structure, around: list[object]) -> None:
    kind = type(value).__name__
    if isinstance(value, Mapping):
        # The order of the keys is irrelevant.
        keys = sorted(value, key=repr)
        found.values[place] = _Container("mapping", tuple(keys))
        parts = [(f"{place}[{key!r}]", value[key]) for key in keys]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):  # a namedtuple
        names = list(value._fields)
        found.values[place] = _Container(kind, tuple(names))
        parts = [(f"{place}.{name}", getattr(value, name)) for name in names]
    elif isinstance(value, list | tuple):  # lists and tuples unpack in the same way
        found.values[place] = _Container("sequence", len(value))
        parts = [(f"{place}[{index}]", part) for index, part in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        found.values[place] = _Container(kind, tuple(names))
        parts = [(f"{place}.{name}", getattr(value, name, None)) for name in names]
    elif hasattr(type(value), "__attrs_attrs__"):
        names = [attribute.name for attribute in type(value).__attrs_attrs__]
        found.values[place] = _Container(kind, tuple(names))
        parts = [(f"{place}.{name}", getattr(value, name, None)) for name in names]
    elif type(value) in pytree.SUPPORTED_NODES:
        children, _ = pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
        found.values[place] = _Container(kind, len(children))
        parts = [(f"{place}[{index}]", part) for index, part in enumerate(children)]
    else:
        found.unknown[place] = f"an object of type {kind}"
        return
    for part_place, part in parts:
        _add(part, part_place, found, around)
