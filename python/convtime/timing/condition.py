"""A condition of a measurement: used, requested, and the reason for a difference."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

Value = TypeVar("Value", str, bool)


@dataclasses.dataclass(frozen=True, eq=False)
class Condition(Generic[Value]):
    """The condition that was used, and the requested one.

    It compares equal to the used value, and to a condition with the same used value.

    Attributes:
        used: the condition during the measurement.
        requested: the condition in the options.
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
