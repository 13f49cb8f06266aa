"""The common base of reports of in-place model changes: printing and undoing."""

from __future__ import annotations

import abc
from typing import ClassVar

from convtime.core.shown import Shown
from convtime.nn import show


class ModelChange(Shown, abc.ABC, show=show):
    """A change of a model's layers; as a context manager, it undoes the change on exit.

    Attributes:
        left: The layers that were not changed, as (name, reason); "" is the model itself.
    """

    left: tuple[tuple[str, str], ...]

    _package: ClassVar[str] = "convtime.nn"

    #: Column title for such a layer in a table, and the phrase after the count of changed ones.
    one: ClassVar[str]
    counted: ClassVar[str]

    @property
    @abc.abstractmethod
    def done(self) -> tuple[tuple[str, str], ...]:
        """The changed layers, as (name, change)."""

    @abc.abstractmethod
    def _undo(self) -> None:
        """Restore the model."""

    def __exit__(self, *_error: object) -> None:
        self._undo()
