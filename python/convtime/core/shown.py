"""Results print themselves with the functions of their room's module ``show``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from convtime.core import html, markdown, text
from convtime.core.page import Block, Line

if TYPE_CHECKING:
    from convtime.core.figure import Figure


class Shown:
    """A result that is printed by the functions of a module.

    The module has ``line`` (one line), ``printed`` (the blocks of the printed text; without it,
    ``line``) and ``details`` (the blocks of the whole page; without it, ``printed``). It imports
    the result's type for type checkers only.
    """

    _show: ClassVar[Any]
    _package: ClassVar[str] = "convtime"

    def __init_subclass__(cls, *, show: Any = None, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if show is not None:
            cls._show = show

    def __str__(self) -> str:
        """Return the result as text, with its remarks."""
        if hasattr(self._show, "printed"):
            return text.render(self._show.printed(self))
        line: str = self._show.line(self)
        return line

    def __repr__(self) -> str:
        return f"<{self._package}.{type(self).__name__} {self._show.line(self)}>"

    def details(self) -> str:
        """Return all known facts as text, which a notebook shows as tables."""
        return _Details(self._show.details(self))

    def to_markdown(self) -> str:
        """Return :meth:`details` as Markdown for a pull request, with everything escaped."""
        return markdown.render(blocks_of(self))

    def figures(self) -> Iterable[Figure]:
        """Return the figures of this result, the most informative first."""
        return ()

    def _repr_html_(self) -> str:
        page = html.render(self._show.details(self))
        return page + "".join(figure.inline() for figure in itertools.islice(self.figures(), 1))


class _Details(str):
    """Text of a page."""

    _blocks: tuple[Block, ...]

    def __new__(cls, blocks: Iterable[Block]) -> _Details:
        page = tuple(blocks)
        made = super().__new__(cls, text.render(page))
        made._blocks = page
        return made

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return html.render(self._blocks)


def blocks_of(result: object) -> list[Block]:
    """Return the blocks of any result, with an answer; a plain dataclass is a sentence."""
    if not isinstance(result, Shown):
        return [Line(str(result), role="answer")]
    blocks: list[Block] = [*result._show.details(result)]
    if any(block.role == "answer" for block in blocks):
        return blocks
    return [Line(result._show.line(result), role="answer"), *blocks]
