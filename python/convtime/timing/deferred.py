"""Deferred work: a call of a generator function or a coroutine function does none of its work."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Literal

Kind = Literal["generator", "coroutine", "asynchronous generator"]

#: Types that such functions return; futures and other awaitables have other types.
DEFERRED_TYPES = frozenset({types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType})

_REMEDIES: dict[Kind, str] = {
    "generator": "calls list() on it",
    "coroutine": "passes it to asyncio.run()",
    "asynchronous generator": "iterates over it in a coroutine that it passes to asyncio.run()",
}


def deferred_kind(fn: object) -> Kind | None:
    """Return the kind of deferred object that a function returns; None for other callables."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    for function in (fn, inspect.getattr_static(type(fn), "__call__", None)):
        if inspect.isgeneratorfunction(function):
            return "generator"
        if inspect.iscoroutinefunction(function):
            return "coroutine"
        if inspect.isasyncgenfunction(function):
            return "asynchronous generator"
    return None


def refuse_deferred(what: str, fn: object, name: str) -> None:
    """Refuse a function whose calls would defer their work.

    Args:
        what: role of the function.
        fn: the function, or any other callable.
        name: name of the function for the message.

    Raises:
        TypeError: for a generator, coroutine or asynchronous generator function.
    """
    if (kind := deferred_kind(fn)) is not None:
        raise TypeError(
            f"{what} must do its work when it is called, got {name!r}, {_with_article(kind)} "
            f"function, which starts later; pass a function that {_REMEDIES[kind]}"
        )


def refuse_deferred_result(result: object, name: str) -> None:
    """Refuse the result of a call that deferred its work; close it if it is a coroutine.

    Raises:
        TypeError: for a generator, a coroutine, a future, or any other awaitable.
    """
    kind: Kind
    if inspect.isawaitable(result):
        kind = "coroutine"
    elif inspect.isgenerator(result):
        kind = "generator"
    elif inspect.isasyncgen(result):
        kind = "asynchronous generator"
    else:
        return
    if isinstance(result, types.CoroutineType):  # prevents the warning "was never awaited"
        result.close()
    raise TypeError(
        f"the timed function must do its work when it is called, got {name!r}, which returned an "
        f"object of type {type(result).__name__} that starts later; pass a function that "
        f"{_REMEDIES[kind]}"
    )


def _with_article(kind: Kind) -> str:
    return f"{'an' if kind.startswith('a') else 'a'} {kind}"
