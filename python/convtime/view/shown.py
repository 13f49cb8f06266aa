"""Results print themselves with the functions of a module of their room, which they name."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from convtime.core.files import extension_of, write_file
from convtime.view import html, markdown, text
from convtime.view.figure import Figure
from convtime.view.page import Block, Line
from convtime.view.report import PAGE_EXTENSIONS, Section, page_of


class Reported:
    """A result that can be written as a page; without a module that draws it, it is a sentence."""

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the result as a page: one HTML file, which needs no network and no server.

        ``convtime report`` writes a page of several results.

        Args:
            path: the file; it ends in ``.html`` or has no extension.

        Raises:
            InputError: the path has another extension, or the file cannot be written.
        """
        extension_of(path, PAGE_EXTENSIONS)
        title = str(getattr(self, "name", "")) or type(self).__name__
        write_file(path, page_of([section_of(title, self)]))


class Shown(Reported):
    """A result that is printed by the functions of a module, which is imported when it is needed.

    The module has ``line`` (one line), ``printed`` (the blocks of the printed text; without it,
    ``line``), ``details`` (the blocks of the whole page; without it, ``printed``), ``figures``
    (without it, there are none), ``appendix`` (blocks that only a page has) and ``plot`` (what a
    result's own method ``plot`` draws).
    """

    _show: ClassVar[str]
    _package: ClassVar[str] = "convtime"

    def __init_subclass__(cls, *, show: str = "", package: str = "", **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if show:
            cls._show = show
        if package:
            cls._package = package

    @classmethod
    def _drawing(cls) -> Any:
        """Return the module that draws these results."""
        return importlib.import_module(cls._show)

    def __str__(self) -> str:
        """Return the result as text, with its remarks."""
        drawing = self._drawing()
        has_page = hasattr(drawing, "printed")
        return text.render(drawing.printed(self)) if has_page else str(drawing.line(self))

    def __repr__(self) -> str:
        return f"<{self._package}.{type(self).__name__} {self._drawing().line(self)}>"

    def details(self) -> str:
        """Return all known facts as text, which a notebook shows as tables."""
        return _Details(self._drawing().details(self))

    def to_markdown(self) -> str:
        """Return :meth:`details` as Markdown for a pull request, with everything escaped."""
        return markdown.render(blocks_of(self))

    def figures(self) -> Iterable[Figure]:
        """Return the figures of this result, the most informative first."""
        figures: Iterable[Figure] = getattr(self._drawing(), "figures", lambda _: ())(self)
        return figures

    def _repr_html_(self) -> str:
        page = html.render(self._drawing().details(self))
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
    drawing = result._drawing()
    blocks: list[Block] = [*drawing.details(result)]
    if any(block.role == "answer" for block in blocks):
        return blocks
    return [Line(drawing.line(result), role="answer"), *blocks]


def section_of(title: str, result: object) -> Section:
    blocks, figures = blocks_of(result), []
    if isinstance(result, Shown):
        blocks += getattr(result._drawing(), "appendix", lambda _: ())(result)
        figures = [*result.figures()]
    return Section(title, type(result).__name__, blocks, figures, provenances(result))


def provenances(result: object) -> dict[str, Mapping[str, Any]]:
    """Return the provenance of a result, or of each of its measurements, by name."""
    own = getattr(result, "provenance", None)
    if own is not None:
        return {"": own}
    measurements: Mapping[str, Any] = getattr(result, "measurements", {})
    return {name: measured.provenance for name, measured in measurements.items()}
