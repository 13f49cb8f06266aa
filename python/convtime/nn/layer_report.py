"""The common base of reports about a model's layers, which prints them."""

from __future__ import annotations

import abc
from typing import ClassVar

from convtime.view.shown import Shown


class LayerReport(Shown, abc.ABC, show="convtime.nn.show", package="convtime.nn"):
    """What was done with the layers of a model.

    Attributes:
        left: The layers that were not changed, as (name, reason); "" is the model itself.
    """

    left: tuple[tuple[str, str], ...]

    #: Column title for such a layer in a table, and the phrase after the count of changed ones.
    one: ClassVar[str]
    counted: ClassVar[str]

    @property
    @abc.abstractmethod
    def done(self) -> tuple[tuple[str, str], ...]:
        """The changed layers, as (name, change)."""
