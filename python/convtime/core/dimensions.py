"""Parameters with a number for each spatial dimension.

Imports nothing compiled: the child of convtime.conv.plan_oracle loads it without convtime's core.
"""

from __future__ import annotations

from collections.abc import Sequence

Numbers = int | Sequence[int]


def per_dimension(given: Numbers, rank: int) -> tuple[int, ...]:
    """The numbers as a tuple; a single one stands for all ``rank`` spatial dimensions."""
    # To Python, bytes are a sequence of numbers; here they are told to be none.
    if isinstance(given, Sequence) and not isinstance(given, bytes | bytearray | memoryview):
        numbers = tuple(given)
    else:
        numbers = (given,)  # type: ignore[assignment]
    return numbers * rank if len(numbers) == 1 else numbers
