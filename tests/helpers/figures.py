"""Look into the specification of a figure, and draw it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from convtime.view.figure import Figure


def parts(view: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a specification, each before those in it."""
    if isinstance(view, dict):
        yield view
        for inner in view.values():
            yield from parts(inner)
    elif isinstance(view, list):
        for inner in view:
            yield from parts(inner)


def tables(figure: Figure, *fields: str) -> list[dict[str, list[Any]]]:
    """Return the columns of each view's data that has all of these fields."""
    return [
        columns
        for part in parts(figure.spec)
        for columns in part.get("values", ())
        if isinstance(columns, dict) and all(field in columns for field in fields)
    ]


def table(figure: Figure, *fields: str) -> dict[str, list[Any]]:
    """Return the columns of the only view with these fields."""
    (columns,) = tables(figure, *fields)
    return columns


def of_series(columns: dict[str, list[Any]], name: str, field: str) -> list[Any]:
    """Return the values of one series in a column."""
    pairs = zip(columns["series"], columns[field], strict=True)
    return [value for series, value in pairs if series == name]


def encodings(figure: Figure, field: str) -> list[dict[str, Any]]:
    """Return the encodings of a field, which have its scale and title."""
    return [part for part in parts(figure.spec) if part.get("field") == field]


def check_drawn(figure: Figure) -> str:
    """Draw a figure as SVG, after Vega-Lite compiled it, and return the SVG."""
    vl_convert = pytest.importorskip("vl_convert")
    compiled = vl_convert.vegalite_to_vega(figure.spec)
    assert compiled["marks"]
    svg = figure.content(".svg").decode()
    assert "NaN" not in svg
    assert "Infinity" not in svg
    return svg
