"""The common base of reports of in-place model changes: printing and undoing."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import ClassVar


class ModelChange(abc.ABC):
    """A change of a model's layers; as a context manager, it undoes the change on exit.

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

    @abc.abstractmethod
    def _undo(self) -> None:
        """Restore the model."""

    def __str__(self) -> str:
        """Return how many layers were changed, and why others were not."""
        from convtime.show.model_change import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.model_change import line

        return f"<convtime.nn.{type(self).__name__} {line(self)}>"

    def details(self) -> str:
        """Return the change of each layer, or why it was left."""
        from convtime.show.model_change import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.model_change import html_sheet

        return html_sheet(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo()
