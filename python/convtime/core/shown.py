"""Results print themselves with the functions of their room's module ``show``."""

from __future__ import annotations

from typing import Any, ClassVar


class Shown:
    """A result that is printed by the functions of a module.

    The module has ``line`` (one line), ``brief`` (the printed text; without it, ``line``),
    ``sheet`` (all facts) and ``html_sheet``. It imports the result's type for type checkers only.
    """

    _show: ClassVar[Any]
    _package: ClassVar[str] = "convtime"

    def __init_subclass__(cls, *, show: Any = None, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if show is not None:
            cls._show = show

    def __str__(self) -> str:
        """Return the result as text, with its remarks."""
        text: str = getattr(self._show, "brief", self._show.line)(self)
        return text

    def __repr__(self) -> str:
        return f"<{self._package}.{type(self).__name__} {self._show.line(self)}>"

    def details(self) -> str:
        """Return all known facts as text."""
        text: str = self._show.sheet(self)
        return text

    def _repr_html_(self) -> str:
        html: str = self._show.html_sheet(self)
        return html
