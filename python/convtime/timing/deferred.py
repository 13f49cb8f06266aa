"""Work that a call puts off: generators and coroutines run none of it until they are asked to."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Literal

Kind = Literal["generator", "coroutine", "asynchronous generator"]

#: Of what such functions return; futures and other awaitables have types of their own.
DEFERRED_TYPES = frozenset({types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType})

_REMEDIES: dict[Kind, str] = {
    "generator": "calls list() on it",
    "coroutine": "passes it to asyncio.run()",
    "asynchronous generator": "iterates over it in a coroutine that it passes to asyncio.run()",
}


def deferred_kind(fn: object) -> Kind | None:
    """What a function's calls return in place of doing its work; None for other callables."""
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
    """Refuses a function whose calls would put their work off.

    Args:
        what: what the function is for.
        fn: the function, or any other callable.
        name: what its user calls it.

    Raises:
        TypeError: for a function of a generator, a coroutine or an asynchronous generator.
    """
    if (kind := deferred_kind(fn)) is not None:
        raise TypeError(
            f"{what} must do its work when it is called, got {name!r}, a function of "
            f"{_with_article(kind)}, which begins later; pass a function that {_REMEDIES[kind]}"
        )


def refuse_deferred_result(result: object, name: str) -> None:
    """Refuses a result of a call that put its work off, and closes it if it is a coroutine.

    Raises:
        TypeError: for a generator, a coroutine, a future, or anything else to be awaited.
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
    if isinstance(result, types.CoroutineType):  # else Python warns that nobody awaited it
        result.close()
    raise TypeError(
        f"what is timed must do its work when it is called, and {name!r} returned an object of "
        f"type {type(result).__name__}, which begins later; pass a function that {_REMEDIES[kind]}"
    )


def _with_article(kind: Kind) -> str:
    return f"{'an' if kind.startswith('a') else 'a'} {kind}"
