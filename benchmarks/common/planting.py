"""What is planted: a call with one thing about it that convtime.diagnose is to name first.

Sizes, durations and dtypes are drawn, and not chosen: by the commit that froze the rules, which no
one knew while they wrote the rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

NOTHING = "nothing"


@dataclasses.dataclass(frozen=True)
class Planted:
    """A call, and what is around it while it is diagnosed.

    Attributes:
        fn: What is diagnosed.
        args: Its arguments.
        around: What goes on meanwhile, such as another process's work.
        calls_before: How often it is called before, so that what only first calls do is done. None
            where first calls are what is planted.
        kept: What has to live as long as the call, which does not keep it: a graph's tensors.
    """

    fn: Callable[..., object]
    args: tuple[Any, ...] = ()
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    calls_before: int = 5
    kept: object = None


@dataclasses.dataclass(frozen=True)
class Plant:
    """A case of the benchmark.

    Attributes:
        cause: The code of the cause that is to be named first; NOTHING for a control.
        make: Makes it from a source of chance, and also gives what was drawn.
    """

    cause: str
    make: Callable[[Draw], Planted]


class Draw:
    """Chance that is the same for the same commit and case, and that keeps what was drawn.

    Args:
        commit: That froze the rules.
        key: Of the case.
    """

    def __init__(self, commit: str, key: str) -> None:
        self._random = random.Random(f"{commit}:{key}")  # noqa: S311  # no secret
        self.drawn: dict[str, int | float | str] = {}

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number from low to high."""
        self.drawn[name] = value = self._random.randint(low, high)
        return value

    def seconds(self, name: str, low: float, high: float) -> float:
        """A duration between two, to a microsecond."""
        self.drawn[name] = value = round(self._random.uniform(low, high), 6)
        return value

    def one_of(self, name: str, *choices: str) -> str:
        """One of several names."""
        self.drawn[name] = value = self._random.choice(choices)
        return value


Plants = Mapping[str, Plant]
