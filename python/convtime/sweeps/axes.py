"""The axes of a sweep: their values, and checks that they fit the application."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.sweeps.comparison_table import COMPARISON_COLUMNS
from convtime.sweeps.plan import ITERATIONS, Label
from convtime.sweeps.sweep_table import SWEEP_COLUMNS
from convtime.timing.options import Options, options_of

#: Options of time_op that can be axes. ``device`` is excluded: it is usually a parameter of the
#: factory, which creates the tensors. The other excluded options apply to the whole process.
AXIS_OPTIONS = tuple(
    field.name
    for field in dataclasses.fields(Options)
    if field.name not in ("device", "stream", "log", "margin")
)

# A run of iterations imitates a program that has just started. By default, nothing runs before or
# between the calls, and no batch is discarded because its queue was not held.
_OF_ITERATIONS: Mapping[str, Any] = {
    "warmup": 0,
    "queue": "none",
    "cache": "warm",
    "placement": "as-is",
    "pages": "as-is",
    "regime": "as-is",
}
# The functions' arguments, and the columns of their tables, which no axis can be named like.
_ARGUMENTS = {"sweep": "axes", "compare": "over"}
_COLUMNS = {"sweep": SWEEP_COLUMNS, "compare": COMPARISON_COLUMNS}
_SET_BY_ITERATIONS = ("stop", "tolerance", "min_samples", "max_samples", "budget")
_TORCH_VALUES = (torch.dtype, torch.memory_format, torch.layout, torch.device)


@dataclasses.dataclass(frozen=True)
class Axes:
    """The axes of a sweep, by name.

    Attributes:
        values: values of each axis, by label.
        options: options of time_op that apply to all points.
    """

    values: Mapping[str, Mapping[Label, Any]]
    options: Mapping[str, Any]

    @property
    def labels(self) -> dict[str, tuple[Label, ...]]:
        return {axis: tuple(values) for axis, values in self.values.items()}

    @property
    def parameters(self) -> tuple[str, ...]:
        """Axes that are parameters of factories."""
        return tuple(axis for axis in self.values if axis not in (*AXIS_OPTIONS, ITERATIONS))

    def parameters_at(self, point: Mapping[str, Label]) -> dict[str, Any]:
        return {axis: self.values[axis][point[axis]] for axis in self.parameters}

    def options_at(self, point: Mapping[str, Label]) -> dict[str, Any]:
        own = {axis: self.values[axis][point[axis]] for axis in point if axis in AXIS_OPTIONS}
        given = {**self.options, **own}
        if ITERATIONS not in self.values:
            return given
        count = self.values[ITERATIONS][point[ITERATIONS]]
        counted = {"stop": "count", "min_samples": count, "max_samples": count}
        return {**_OF_ITERATIONS, **given, **counted}


def read_axes(given: object, options: Mapping[str, Any], function: str = "sweep") -> Axes:
    """Return the axes and options of a call.

    Args:
        given: values by axis.
        options: options that are the same at all points.
        function: name of the function that was called, ``sweep`` or ``compare``.

    Raises:
        InputError: an axis is invalid, its values are indistinguishable, or an option is out of
            range, given twice, or contradicts another.
        TypeError: an option is unknown.
    """
    if not isinstance(given, Mapping) or not given:
        raise InputError(
            f"{_ARGUMENTS[function]} must be a mapping of names to values, such as "
            f"{{'batch': [1, 8, 64]}}, got {given!r:.80}"
        )
    options_of(function, Options, options)
    axes = Axes(
        {_name(axis, _COLUMNS[function]): _values(axis, values) for axis, values in given.items()},
        options,
    )
    for axis in axes.values:
        require(axis not in options, f"{axis} must be either an axis or an option, got both")
        if axis in AXIS_OPTIONS:
            _check_option(axis, axes.values[axis].values())
    stops = (options.get("stop"), *axes.values.get("stop", ()))
    require(
        function != "sweep" or "verdict" not in stops,
        "stop of a sweep must not be 'verdict'; it is only for convtime.compare; use 'interval'",
    )
    if ITERATIONS in axes.values:
        require(
            function == "sweep",
            f"{ITERATIONS!r} must be an axis of a sweep, whose runs have one application each; "
            "compare interleaves several; use max_samples",
        )
        _check_iterations(axes)
    _check_ranges(axes)
    return axes


def _name(axis: object, columns: Collection[str]) -> str:
    if not (isinstance(axis, str) and axis.isidentifier()):
        raise InputError(f"an axis's name must be a parameter or an option, got {axis!r}")
    require(
        axis not in columns,
        f"an axis's name must not be a column of the table, got {axis!r}; rename it",
    )
    return axis


def _values(axis: str, given: Any) -> dict[Label, Any]:
    if isinstance(given, Mapping):
        pairs = [
            (_label(axis, name, "use a string as name"), value) for name, value in given.items()
        ]
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes | torch.Tensor):
        pairs = [(_label(axis, value), value) for value in given]
    else:
        raise InputError(f"axis {axis!r} must have a sequence of values, got {given!r:.80}")
    require(pairs, f"axis {axis!r} must have at least one value, got none")
    labeled: dict[Label, Any] = {}
    for label, value in pairs:
        # A mapping keeps only one of several equal values, such as 1 and True.
        is_new = label not in labeled and str(label) not in map(str, labeled)
        require(is_new, f"axis {axis!r} has the value {label!r} more than once")
        labeled[label] = value
    return labeled


def _label(axis: str, value: Any, advice: str = "give a mapping of names to values") -> Label:
    if isinstance(value, _TORCH_VALUES):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple | list):
        return str(tuple(_label(axis, part, advice) for part in value))
    label = _plain(value)
    if label is None and value is not None:
        is_integer = isinstance(value, int)
        got = f"{value.bit_length()} bits" if is_integer else f"one of type {type(value).__name__}"
        raise InputError(
            f"axis {axis!r} must have values that can be stored: strings, floats and integers of "
            f"64 bits, got {got}; {advice}"
        )
    return label


def _plain(value: Any) -> Label:
    """Return a plain number or string, from any library's type; None for other types."""
    if isinstance(value, int):
        return value if codec.holds(value) else None
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    item = getattr(value, "item", None)  # e.g. a NumPy scalar
    return _plain(item()) if callable(item) and getattr(value, "shape", None) == () else None


def _check_option(axis: str, values: Iterable[Any]) -> None:
    try:
        for value in values:
            Options(**{axis: value})
    except (TypeError, ValueError) as error:
        raise InputError(f"axis {axis!r}: {error}") from error


def _check_ranges(axes: Axes) -> None:
    """Check the combination of options at each point."""
    own = [axis for axis in axes.values if axis in (*AXIS_OPTIONS, ITERATIONS)]
    for labels in itertools.product(*(axes.values[axis] for axis in own)):
        point = dict(zip(own, labels, strict=True))
        try:
            Options(**axes.options_at(point)).check_ranges()
        except ValueError as error:
            about = [axis for axis in own if axis in str(error)]
            at = ", ".join(f"{axis}={point[axis]}" for axis in about)
            raise InputError(f"{f'at {at}: ' if at else ''}{error}") from error


def _check_iterations(axes: Axes) -> None:
    for count in axes.values[ITERATIONS].values():
        require(
            isinstance(count, int) and not isinstance(count, bool) and count >= 1,
            f"axis {ITERATIONS!r} must have integers of at least 1, got {count!r}",
        )
    both = {*axes.options, *axes.values}
    excluded = [name for name in _SET_BY_ITERATIONS if name in both]
    require(
        not excluded,
        f"{ITERATIONS!r} sets the number of timed calls; remove {' and '.join(excluded)} or "
        "the axis",
    )
    require(
        "graph" not in (axes.options.get("method"), *axes.values.get("method", ())),
        f"{ITERATIONS!r} requires calls that are timed one by one, but method 'graph' times "
        "many at once; use another method",
    )
