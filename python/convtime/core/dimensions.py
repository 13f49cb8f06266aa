"""Parameters with a number for each spatial dimension.

Imports nothing compiled: the child of convtime.conv.plan_oracle loads it without convtime's core.
"""

from __future__ import annotations

from collections.abc import Sequence

Numbers = int | Sequence[int]


def per_dimension(given: Numbers, rank: int) -> tuple[int, ...]:
    """The numbers as a tuple; a single one stands for all ``rank`` spatial dimensions."""
    numbers = tuple(given) if isinstance(given, Sequence) else (given,)
    return numbers * rank if len(numbers) == 1 else numbers
