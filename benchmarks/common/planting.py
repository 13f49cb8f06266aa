"""What is planted: a call with one thing about it that convtime.diagnose is to name first.

Sizes, durations and dtypes are drawn, and not chosen: by the commit that froze the rules, which no
one knew while they wrote the rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

NOTHING = "nothing"


@dataclasses.dataclass(frozen=True)
class Planted:
    """A call, and what goes on around it while it is diagnosed, such as another process's work.

    It is called some times before, so that what only first calls do is done: 0 times where first
    calls are what is planted. `kept` lives as long as the call, which does not keep it.
    """

    fn: Callable[..., object]
    args: tuple[Any, ...] = ()
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    calls_before: int = 5
    kept: object = None


@dataclasses.dataclass(frozen=True)
class Plant:
    """A case: the code of the cause that is to be named first, or NOTHING, and what makes it."""

    cause: str
    make: Callable[[Draw], Planted]


class Draw:
    """Chance that is the same for the same commit, which froze the rules, and case; and that keeps
    what was drawn.
    """

    def __init__(self, commit: str, key: str) -> None:
        self._random = random.Random(f"{commit}:{key}")  # noqa: S311  # no secret
        self.drawn: dict[str, int | float | str] = {}

    def number(self, name: str, low: float, high: float) -> Any:
        """A whole number where both limits are, or else a duration, to a microsecond."""
        if isinstance(low, int) and isinstance(high, int):
            self.drawn[name] = self._random.randint(low, high)
        else:
            self.drawn[name] = round(self._random.uniform(low, high), 6)
        return self.drawn[name]

    def one_of(self, name: str, *choices: str) -> str:
        self.drawn[name] = value = self._random.choice(choices)
        return value


# An argument of a planted call: what makes it, or the name and limits of a number that is drawn.
Wanted = Callable[[Draw], Any] | tuple[str, float, float]


class Plants(dict[str, Plant]):
    def make(self, key: str, cause: str) -> Callable[[Callable[[Draw], Planted]], Any]:
        return lambda make: self.setdefault(key, Plant(cause, make))

    def call(
        self, key: str, cause: str, *wanted: Wanted, first: bool = False
    ) -> Callable[[Callable[..., object]], Any]:
        """Adds the case of calling the decorated function with these arguments."""

        def make(fn: Callable[..., object], draw: Draw) -> Planted:
            arguments = [each(draw) if callable(each) else draw.number(*each) for each in wanted]
            return Planted(lambda: fn(*arguments), calls_before=0 if first else 5)

        return lambda fn: self.setdefault(key, Plant(cause, functools.partial(make, fn)))


def python_turns(x: Any, turns: int) -> Any:
    total = 0
    for turn in range(turns):
        total += turn
    return x + float(total % 7)


def additions(x: Any, times: int) -> Any:
    y = x
    for _ in range(times):
        y = y + 1.0
    return y


def slow_scale(draw: Draw) -> Callable[[], float]:
    """A number that takes long to make once."""
    seconds = draw.number("build", 0.3, 1.5)

    @functools.cache
    def scale() -> float:
        time.sleep(seconds)
        return 1.5

    return scale


def scaled(x: Any, scale: Callable[[], float]) -> Any:
    return x * scale()


def diagnose_planted(
    plants: Mapping[str, Plant], key: str, seed: str, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """What convtime.diagnose finds in a case, and what a row has of it in any case."""
    import torch

    from convtime import diagnose
    from convtime.core import codec

    draw = Draw(seed, key)
    planted = plants[key].make(draw)
    for _ in range(planted.calls_before):
        planted.fn(*planted.args)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    begin = time.perf_counter()
    with planted.around():
        found = diagnose(planted.fn, *planted.args, name=key, **options)
    seconds = time.perf_counter() - begin
    return found, {
        "cause": plants[key].cause,
        "drawn": draw.drawn,
        "skipped": {each.contrast: each.reason for each in found.skipped},
        "evidence": codec.encode(found.evidence),
        "seconds": seconds,
    }


def describe_causes(causes: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {"code": cause.code, "effect": cause.effect, "confidence": cause.confidence}
        for cause in causes
    ]
