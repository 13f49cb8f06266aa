"""Interference between the candidates of a comparison."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Interference:
    """A candidate whose time changes when it runs with the others.

    Attributes:
        ratio: its time with the others over its time alone.
        alone_seconds: median of its time alone, in seconds.
        sentence: both in words.
    """

    ratio: float
    alone_seconds: float
    sentence: str

    def __str__(self) -> str:
        return f"interference: {self.sentence}"
