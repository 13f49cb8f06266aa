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


def check_plot(path: str | os.PathLike[str]) -> None:
    """Check before any timing that a plot of this file type can be drawn.

    Raises:
        InputError: matplotlib is missing, or the file type is unknown.
    """
    figure_class()
    if file_type(Path(path).suffix) not in FILE_TYPES:
        raise InputError(
            f"{path}: a plot's file name must end in one of "
            f"{', '.join(f'.{name}' for name in FILE_TYPES)}"
        )


def file_type(suffix: str) -> str:
    return suffix.removeprefix(".").lower()


def microseconds(seconds: Iterable[float]) -> list[float]:
    return [1e6 * second for second in seconds]


def draw_estimate(
    axis: Any, value: float, interval: tuple[float, float], height: float, who: str
) -> None:
    if value > 0:  # the axis is logarithmic
        axis.plot(1e6 * value, height, "o", color=COLORS[who], markersize=4)
    if interval[0] > 0 and math.isfinite(interval[1]):
        axis.plot(microseconds(interval), (height, height), color=COLORS[who])
