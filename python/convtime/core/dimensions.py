"""Parameters with a number for each spatial dimension.

Imports nothing compiled: the child of convtime.conv.plan_oracle loads it without convtime's core.
"""

from __future__ import annotations

from collections.abc import Sequence

Numbers = int | Sequence[int]


def per_dimension(given: Numbers, rank: int) -> tuple[int, ...]:
    """The numbers as a tuple; a single one stands for all ``rank`` spatial dimensions."""
    # Bytes are a sequence of ints to Python, and no argument of a convolution.
    if isinstance(given, Sequence) and not isinstance(given, bytes | bytearray | memoryview):
        numbers = tuple(given)
    else:
        numbers = (given,)  # type: ignore[assignment]
    return numbers * rank if len(numbers) == 1 else numbers
