"""Parameters with one number per spatial dimension."""

from __future__ import annotations

from collections.abc import Sequence

Numbers = int | Sequence[int]


def per_dimension(given: Numbers, rank: int) -> tuple[int, ...]:
    """Return the numbers as a tuple; a single number applies to all ``rank`` spatial dimensions."""
    # Bytes are a sequence of ints in Python, but not a valid convolution argument.
    if isinstance(given, Sequence) and not isinstance(given, bytes | bytearray | memoryview):
        numbers = tuple(given)
    else:
        numbers = (given,)  # type: ignore[assignment]
    return numbers * rank if len(numbers) == 1 else numbers
