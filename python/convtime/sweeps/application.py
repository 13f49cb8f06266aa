"""Applications that are measured at each point, and their identities for resuming."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.sweeps.axes import AXIS_OPTIONS
from convtime.timing.candidate import Candidate, name_of

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass(frozen=True)
class Application:
    """An application that a sweep measures.

    Attributes:
        make: factory that returns the timed callable for a point's parameters.
        identity: description with a hash, which changes when the code changes.
    """

    make: Callable[..., Any]
    identity: str

    def candidate(self, parameters: Mapping[str, Any], name: str) -> Candidate:
        made = self.make(**parameters)
        if isinstance(made, Candidate):
            return made.but(name=name)
        require(
            callable(made),
            "a factory must return a callable or a convtime.Candidate, got "
            f"{type(made).__name__}; return a function that does the work",
        )
        return Candidate(made, name=name)


def read_applications(given: Any, parameters: Sequence[str]) -> dict[str, Application]:
    """Return the applications of a call, by name.

    Args:
        given: callable or Candidate, or a mapping of names to several.
        parameters: axes passed to factories. If empty, ``given`` itself is timed.

    Raises:
        InputError: ``given`` has another type, or a factory does not take exactly these parameters.
    """
    if not isinstance(given, Mapping):
        require(
            callable(given) or isinstance(given, Candidate),
            "fn must be a callable, a Candidate, or a mapping of names to several, got "
            f"{type(given).__name__}",
        )
        given = {given.name if isinstance(given, Candidate) else name_of(given): given}
    require(given, "a sweep must have at least one application, got none")
    return {name: _application(name, timed, parameters) for name, timed in given.items()}


def _application(name: object, given: Any, parameters: Sequence[str]) -> Application:
    require(
        isinstance(name, str) and name,
        f"an application's name must be a non-empty string, got {name!r}",
    )
    require(
        callable(given) or isinstance(given, Candidate),
        f"{name!r} must be callable, or a Candidate, got {type(given).__name__}",
    )
    if not isinstance(given, Candidate):
        _check_signature(name, given, parameters)
    elif parameters:
        raise InputError(
            f"{name!r} is a Candidate, which takes no parameters, and {parameters[0]!r} is not "
            "an option of time_op; pass a factory that returns the Candidate"
        )
    make = given if parameters else functools.partial(_itself, given)
    return Application(make, identity_of(given))


def _itself(given: object) -> object:
    """Make what is timed at every point; unlike a lambda, this can be sent to a process."""
    return given


def _check_signature(name: object, given: Callable[..., object], parameters: Sequence[str]) -> None:
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # for some C functions
        return
    own = signature.parameters.values()
    names = [parameter.name for parameter in own if parameter.kind in _BY_NAME]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own)
    for axis in parameters:
        require(
            axis in names or takes_any,
            f"axis {axis!r} must be a timing option or a parameter of {name!r}, which "
            f"takes {', '.join(names) or 'none'}",
        )
    reason = "which no axis gives"
    if not parameters:
        reason = (
            "and no axis is a parameter; make it an axis, or pass convtime.Candidate(fn, *args)"
        )
    for parameter in own:
        is_needed = parameter.kind in (*_BY_NAME, inspect.Parameter.POSITIONAL_ONLY)
        if is_needed and parameter.default is parameter.empty and parameter.name not in parameters:
            require(
                parameter.name not in AXIS_OPTIONS,
                f"{name!r} has a parameter {parameter.name!r}, which is an option of time_op and "
                "is not passed to factories; rename it",
            )
            raise InputError(f"{name!r} needs {parameter.name!r}, {reason}")


def identity_of(fn: Callable[..., object] | Candidate) -> str:
    """Describe a callable, with a hash of its code; objects that it refers to are not hashed."""
    if isinstance(fn, Candidate):
        return f"{identity_of(fn.fn)}({_arguments(fn.args, fn.kwargs)})"
    if isinstance(fn, functools.partial):
        return f"{identity_of(fn.func)}({_arguments(fn.args, fn.keywords)}, …)"
    fn = inspect.unwrap(fn)  # otherwise all functions with the same decorator would be equal
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    name = ".".join(filter(None, (named.__module__, named.__qualname__)))
    code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    return name if code is None else f"{name} ({_digest(code)})"


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named = (f"{name}={_argument(value)}" for name, value in kwargs.items())
    return ", ".join([*map(_argument, args), *named])


def _argument(value: object) -> str:
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind}[{'×'.join(map(str, value.shape))}]"
    plain = isinstance(value, bool | int | float | str | None)
    return repr(value) if plain else type(value).__name__


def _digest(code: types.CodeType) -> str:
    """Hash code independently of its location and of the process."""
    parts = [code.co_code, repr((code.co_names, code.co_varnames, code.co_freevars)).encode()]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            parts.append(_digest(constant).encode())
        elif isinstance(constant, frozenset):  # its order differs between processes
            parts.append(repr(sorted(map(repr, constant))).encode())
        else:
            parts.append(repr(constant).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
