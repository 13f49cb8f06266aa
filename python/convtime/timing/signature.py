"""The parameters that functions share: those of a call, and the timing options.

They are declared once, in :class:`Candidate` and in :class:`Options`. A function that takes them
gets their signature and their descriptions.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar, get_type_hints

from convtime.timing.candidate import Candidate
from convtime.timing.options import Options

Function = TypeVar("Function", bound=Callable[..., object])

_FIELDS = {field.name: field for field in dataclasses.fields(Options)}
# The parameters of a call that are keywords: all but `fn` and `args`.
_CALL = {
    name: parameter
    for name, parameter in inspect.signature(Candidate).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}
_taken: dict[str, tuple[str, ...]] = {}  # by function: the options that it takes


def takes_options(
    *but: str, only: Collection[str] | None = None, call: bool = False
) -> Callable[[Function], Function]:
    """Give a function that takes ``**options`` their signature and docs.

    ``{call}`` and ``{options}`` in its docstring are replaced by their descriptions.

    Args:
        but: options that the function does not take.
        only: the options that the function takes. Default: all.
        call: whether the options include the parameters of a call, as for ``time_op``.
    """
    names = [name for name in (_FIELDS if only is None else only) if name not in but]

    def wrap(function: Function) -> Function:
        own = inspect.signature(function)
        parameters = [
            parameter
            for parameter in own.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        if call:
            parameters += _CALL.values()
        hints = get_type_hints(Options)
        added = [name for name in names if name not in own.parameters]
        parameters += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_FIELDS[name].default,
                annotation=hints[name],
            )
            for name in added
        ]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        _taken[function.__name__] = tuple(names)
        if function.__doc__ is not None:  # None under python -OO
            function.__doc__ = function.__doc__.replace(
                "{call}", _described(Candidate.__init__, ("fn", "args", *_CALL))
            ).replace("{options}", _described(Options, names))
        return function

    return wrap


def _described(owner: object, names: Iterable[str]) -> str:
    hints = get_type_hints(owner, include_extras=True)
    wrapper = textwrap.TextWrapper(width=100, initial_indent=" " * 8, subsequent_indent=" " * 12)
    texts = [wrapper.fill(f"{name}: {hints[name].__metadata__[0]}") for name in names]
    return "\n".join(texts).lstrip()


def options_of(function: str, given: Mapping[str, Any]) -> Options:
    """Make the options of a call.

    Args:
        function: name of the function that was called, which :func:`takes_options` decorates.
        given: the options passed, by name.

    Raises:
        TypeError: for an unknown option.
        ValueError: as :class:`Options`.
    """
    names = _taken.get(function, tuple(_FIELDS))
    for name in given:
        if name not in names:
            raise TypeError(f"{function} has no option {name!r}; there are {', '.join(names)}")
    return Options(**given)


def candidate_and_options(
    function: str, fn: Any, args: tuple[Any, ...], given: Mapping[str, Any]
) -> tuple[Candidate, Options]:
    """Return the candidate and the options that a function was called with.

    Args:
        function: name of the function, as for :func:`options_of`.
        fn: a callable, or a Candidate, which has its arguments and is passed nothing else.
        args: positional arguments of the callable.
        given: keywords: those of a call, and options.

    Raises:
        TypeError: a Candidate is passed with arguments, and as :class:`Candidate` and
            :func:`options_of`.
        ValueError: as :class:`Candidate` and :class:`Options`.
    """
    of_call = {name: value for name, value in given.items() if name in _CALL}
    options = {name: value for name, value in given.items() if name not in _CALL}
    if isinstance(fn, Candidate):
        name = of_call.pop("name", None)
        passed = [*(["arguments"] if args else []), *of_call]
        if passed:
            raise TypeError(
                f"{function} got the Candidate {fn.name!r} and {', '.join(passed)}; pass these to "
                "the Candidate"
            )
        candidate = fn.named(name)
    else:
        candidate = Candidate(fn, *args, **of_call)
    return candidate, options_of(function, options)


Candidate.__doc__ = Candidate.__doc__ and Candidate.__doc__.replace(
    "{call}", _described(Candidate.__init__, ("fn", "args", *_CALL))
)
