"""A condition of a measurement: what was used, what was requested, and why they differ."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

Value = TypeVar("Value", str, bool)


@dataclasses.dataclass(frozen=True, eq=False)
class Condition(Generic[Value]):
    """What was used, compared with what was requested.

    It compares equal to the used value, and to a condition with the same used value.

    Attributes:
        used: what was used.
        requested: what was requested.
        reason: why they differ, or how the used value was chosen; empty if neither needs a reason.
    """

    used: Value
    requested: Value
    reason: str = ""

    def __eq__(self, other: object) -> bool:
        used: object = other.used if isinstance(other, Condition) else other
        return self.used == used

    def __hash__(self) -> int:
        return hash(self.used)

    def __bool__(self) -> bool:
        return bool(self.used)

    def __str__(self) -> str:
        return str(self.used)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)
