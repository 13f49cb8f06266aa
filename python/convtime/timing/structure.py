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


def shortened(position: str) -> str:
    """Shorten a position to fit into a sentence."""
    if len(position) <= _MOST_LETTERS:
        return position
    half = _MOST_LETTERS // 2
    return f"{position[:half]}…{position[-half:]}"


def structure_of(result: object) -> Structure:
    """Return the parts of a result, however nested."""
    structure = Structure()
    _add(result, "", structure, [])
    return structure


def difference(expected: Structure, got: Structure, *, exact: bool) -> str:
    """Describe how the values of a result differ from the expected ones; empty if they do not.

    Of tensors, only the positions are compared.
    """
    for position, value in expected.values.items():
        if position not in got.values or not _equal(value, got.values[position], exact):
            return _description(position, got, value)
    for position in expected.tensors:
        if position not in got.tensors:
            return _description(position, got, "a tensor")
    for position in (*got.values, *got.tensors):
        if position not in expected.values and position not in expected.tensors:
            given = _in_words(got.values[position]) if position in got.values else "a tensor"
            return f"{_at(position)}it gives {given}, and the baseline does not"
    return ""


def _description(position: str, got: Structure, expected: Any) -> str:
    wanted = expected if expected == "a tensor" else _in_words(expected)
    if position in got.values:
        given = _in_words(got.values[position])
    elif position in got.tensors:
        given = "a tensor"
    else:
        given = got.unknown.get(position, "nothing")
    return f"{_at(position)}it gives {given}, not {wanted}"


def _at(position: str) -> str:
    return f"at {shortened(position)}, " if position else ""


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


def _add(value: object, position: str, structure: Structure, parents: list[object]) -> None:
    parts = len(structure.tensors) + len(structure.values) + len(structure.unknown)
    too_deep = len(parents) > _DEEPEST or any(value is each for each in parents)
    if parts >= _MOST_PARTS or too_deep:
        structure.unknown[position] = "more of the same"
    elif isinstance(value, torch.Tensor):
        structure.tensors[position] = value
    elif isinstance(value, np.ndarray | np.generic):
        _add_array(value, position, structure)
    elif isinstance(value, _SCALARS):
        structure.values[position] = value
    elif isinstance(value, Set):
        if all(isinstance(each, _SCALARS) for each in value):
            structure.values[position] = frozenset(value)
        else:
            structure.unknown[position] = type(value).__name__
    else:
        _add_container(value, position, structure, [*parents, value])


def _add_array(value: Any, position: str, structure: Structure) -> None:
    try:
        structure.tensors[position] = torch.from_numpy(np.ascontiguousarray(value))
    except (TypeError, ValueError):  # arrays of strings, objects or dates
        structure.unknown[position] = f"an array of {value.dtype}"


def _add_container(value: Any, position: str, structure: Structure, parents: list[object]) -> None:
    kind = type(value).__name__
    if isinstance(value, Mapping):
        # The order of the keys is irrelevant.
        keys = sorted(value, key=repr)
        structure.values[position] = _Container("mapping", tuple(keys))
        parts = [(f"{position}[{key!r}]", value[key]) for key in keys]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):  # a namedtuple
        names = list(value._fields)
        structure.values[position] = _Container(kind, tuple(names))
        parts = [(f"{position}.{name}", getattr(value, name)) for name in names]
    elif isinstance(value, list | tuple):  # lists and tuples unpack in the same way
        structure.values[position] = _Container("sequence", len(value))
        parts = [(f"{position}[{index}]", part) for index, part in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        structure.values[position] = _Container(kind, tuple(names))
        parts = [(f"{position}.{name}", getattr(value, name, None)) for name in names]
    elif hasattr(type(value), "__attrs_attrs__"):
        names = [attribute.name for attribute in type(value).__attrs_attrs__]
        structure.values[position] = _Container(kind, tuple(names))
        parts = [(f"{position}.{name}", getattr(value, name, None)) for name in names]
    elif type(value) in pytree.SUPPORTED_NODES:
        children, _ = pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
        structure.values[position] = _Container(kind, len(children))
        parts = [(f"{position}[{index}]", part) for index, part in enumerate(children)]
    else:
        structure.unknown[position] = f"an object of type {kind}"
        return
    for part_position, part in parts:
        _add(part, part_position, structure, parents)
