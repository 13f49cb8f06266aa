"""What the rooms' plots share: the figure, its colors and the types of its files."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from convtime.core.errors import InputError, MissingPackageError, first_line

# Okabe and Ito's palette, which is suitable for color-blind readers.
COLORS = {"PyTorch": "#D55E00", "convtime": "#0072B2"}
SMALL: dict[str, Any] = {"markersize": 3, "color": COLORS["convtime"]}
FILE_TYPES = ("png", "svg", "pdf")  # matplotlib's types that need no other program


def figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "plots require matplotlib, which is not installed; run pip install 'convtime[plot]'"
        ) from error
    except Exception as error:  # matplotlib rejects broken settings
        raise InputError(
            f"plots require matplotlib, whose import raised {first_line(error)}; correct "
            "MPLBACKEND or matplotlibrc"
        ) from error

    class ShownFigure(Figure):
        """Figure that notebooks display; by default, they only display pyplot's figures."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", bbox_inches="tight")
            return content.getvalue()

    return ShownFigure


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of a size in inches.

    It is not pyplot's: it always draws off-screen and leaves the user's state alone.
    """
    return figure_class()(figsize=(width, height), dpi=130, layout="constrained")


def file_content(figure: Any, suffix: str) -> bytes:
    """Return the content of a figure's file, whose type the suffix determines."""
    content = io.BytesIO()
    figure.savefig(content, format=_file_type(suffix))
    return content.getvalue()


def check_plot(path: str | os.PathLike[str]) -> None:
    """Check before any timing that a plot of this file type can be drawn.

    Raises:
        InputError: matplotlib is missing, or the file type is unknown.
    """
    figure_class()
    if _file_type(Path(path).suffix) not in FILE_TYPES:
        raise InputError(
            f"{path}: a plot's file name must end in one of "
            f"{', '.join(f'.{name}' for name in FILE_TYPES)}"
        )


def _file_type(suffix: str) -> str:
    return suffix.removeprefix(".").lower()


def scaled(values: Iterable[float | None], factor: float) -> list[float]:
    """Return values in another unit; NaN, which plots leave out, where a value is unknown."""
    return [math.nan if value is None else factor * value for value in values]


def microseconds(seconds: Iterable[float]) -> list[float]:
    return scaled(seconds, 1e6)
