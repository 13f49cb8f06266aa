"""What the candidates of a comparison do to each other."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Interference:
    """A candidate that takes another time beside the others than alone.

    Attributes:
        ratio: its time beside the others over its time alone.
        alone_seconds: the median of its time alone.
        sentence: both in words.
    """

    ratio: float
    alone_seconds: float
    sentence: str

    def __str__(self) -> str:
        return f"interference: {self.sentence}"
