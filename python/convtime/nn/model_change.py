"""What was done to a model in place, and how that is told and undone."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import ClassVar


class ModelChange(abc.ABC):
    """What was done to a model's layers; as a context manager, it undoes that at its end.

    Attributes:
        left: The layers to which nothing was done, as (name, why); "" is the model itself.
    """

    left: tuple[tuple[str, str], ...]

    #: What a table calls such a layer, and what has been done to those that are counted.
    one: ClassVar[str]
    counted: ClassVar[str]

    @property
    @abc.abstractmethod
    def done(self) -> tuple[tuple[str, str], ...]:
        """The other layers, as (name, what was done)."""

    @abc.abstractmethod
    def _undo(self) -> None:
        """Has the model be as it was before."""

    def __str__(self) -> str:
        """To how many layers it was done, and why others were left."""
        from convtime.show.model_change import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.model_change import line

        return f"<convtime.nn.{type(self).__name__} {line(self)}>"

    def details(self) -> str:
        """What was done to each layer, and why it was left where it was."""
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
