"""Figure of where the time of a convolution goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from convtime.conv.explain.kernels import parts
from convtime.view.figure import Figure, columns, microseconds, quantity, series_color

if TYPE_CHECKING:
    from convtime.conv.explain.explanation import Explanation

_WIDTH, _ROW = 440, 24  # pixels


def parts_figures(explanation: Explanation) -> Iterator[Figure]:
    """Yield a bar of the kernels' times by role for each pass and side, if any are known."""
    bars = [
        (f"{found.name}, {who}", part.role, part.seconds)
        for found in explanation.passes
        for who, side in (("PyTorch", found.pytorch), ("convtime", found.convtime))
        for part in parts(side.kernels)
    ]
    if not bars:
        return
    rows = list(dict.fromkeys(row for row, _, _ in bars))
    roles = list(dict.fromkeys(role for _, role, _ in bars))
    yield Figure(
        title=f"{explanation.call.problem.label}, {explanation.call.dtype}: kernels by role",
        description=(
            f"Times of the kernels of {', '.join(rows)}, divided by role: {', '.join(roles)}."
        ),
        view={
            **columns(
                row=[row for row, _, _ in bars],
                series=[role for _, role, _ in bars],
                time=microseconds([seconds for _, _, seconds in bars]),
            ),
            "width": _WIDTH,
            "height": _ROW * len(rows),
            "mark": "bar",
            "encoding": {
                "x": quantity("time", "time (µs): sum of medians") | {"stack": "zero"},
                "y": {"field": "row", "type": "nominal", "title": None, "sort": None},
                "color": series_color(roles),
            },
        },
    )
