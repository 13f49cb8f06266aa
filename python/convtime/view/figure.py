"""Figures: Vega-Lite specifications, from which notebooks, pages and files are drawn.

The data of a view is one row of columns, which ``flatten`` spreads: it is smaller than a row per
point. Names of fields and all expressions are constants of this package. Text of users only
appears as data and as literal titles, after :func:`written` or :func:`labels`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from convtime.core.checks import require
from convtime.core.codec import finite
from convtime.core.errors import MissingPackageError
from convtime.core.files import write_file
from convtime.view.wording import printable

Spec = dict[str, Any]

#: Okabe and Ito's palette, which is suitable for color-blind readers.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
#: Colors of series, in order.
SERIES = (ORANGE, BLUE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#808080")
#: Color of axes and text, with a contrast of 4:1 on white and on the dark themes of notebooks.
INK = "#7d7d7d"
FILE_TYPES = ("png", "svg", "pdf", "json")

_PAIR = re.compile("[\U00010000-\U0010ffff]")
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"  # which JupyterLab draws
_MIME_TYPE = "application/vnd.vegalite.v5+json"
_SCALE = 2  # pixels of a PNG per pixel of the page
_LONGEST = 120  # characters of a title
_LONGEST_LABEL = 60
_LONGEST_DESCRIPTION = 2000
_DIGITS, _MOST_DIGITS = 6, 15  # significant digits of the smallest and of the largest number
_MOST_DECIMALS = 300  # of what a power of ten can be
_LOGARITHMIC_FROM = 20  # ratio of the largest to the smallest value


def config(ink: str = INK) -> Spec:
    """Return the configuration of figures.

    Args:
        ink: color of axes, text and marks of the style ``ink``; a page whose text has a color can
            pass ``currentColor``.
    """
    return {
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {
            "domainColor": ink,
            "tickColor": ink,
            "labelColor": ink,
            "titleColor": ink,
            "titleFontWeight": "normal",
            "gridColor": ink,
            "gridOpacity": 0.25,
            "labelLimit": 260,
        },
        "legend": {
            "labelColor": ink,
            "titleColor": ink,
            "labelLimit": 260,
            "orient": "top",
            "symbolOpacity": 1,
        },
        "title": {
            "color": ink,
            "subtitleColor": ink,
            "anchor": "start",
            "fontSize": 12,
            "limit": 640,
        },
        # Tooltips with titles, and descriptions of marks, would be expressions built of titles.
        "mark": {"tooltip": {"content": "data"}, "aria": False},
        "text": {"color": ink},
        "style": {"ink": {"color": ink}},
    }


@dataclasses.dataclass(frozen=True, repr=False)
class Figure:
    """A figure as a Vega-Lite specification, which is drawn where it is shown.

    Attributes:
        title: title, one line.
        description: what the figure shows, in words, e.g. for screen readers.
        view: the specification without schema, title, description and config.
        key: what lines, bands and symbols mean, one line below the title; may be empty.
    """

    title: str
    description: str
    view: Mapping[str, Any]
    key: str = ""

    @property
    def spec(self) -> Spec:
        """The whole specification, which is JSON-serializable."""
        return {
            "$schema": _SCHEMA,
            "title": {"text": written(self.title), "subtitle": self.key},
            "description": self._shortened_description,
            "config": config(),
            **self.view,
        }

    @property
    def _shortened_description(self) -> str:
        return written(self.description, _LONGEST_DESCRIPTION)

    def __repr__(self) -> str:
        return f"<convtime figure: {written(self.title)}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figure to a file, whose suffix determines the type: png, svg, pdf or json.

        A ``.json`` file is the specification, for any tool that reads Vega-Lite.

        Raises:
            ValueError: the file type is unknown, the file cannot be written, or vl-convert-python,
                which draws pictures, is missing.
        """
        check_plot(path)
        write_file(path, self.content(Path(path).suffix))

    def content(self, suffix: str) -> bytes:
        """Return the content of a file, whose type the suffix determines.

        Raises:
            InputError: vl-convert-python is missing.
        """
        file_type = _file_type(suffix)
        if file_type == "json":
            return json_of(self.spec).encode()
        options = {"scale": _SCALE} if file_type == "png" else {}
        drawn: bytes | str = _convert(f"vegalite_to_{file_type}", self.spec, **options)
        return drawn.encode() if isinstance(drawn, str) else drawn

    def inline(self) -> str:
        """Return the figure as SVG for HTML, in the color of the surrounding text.

        It is empty without vl-convert-python.
        """
        try:
            svg: str = _convert("vegalite_to_svg", self.spec | {"config": config("currentColor")})
        except MissingPackageError:
            return ""
        label = escape(self._shortened_description)
        return svg.replace(
            "<svg ", f'<svg role="img" aria-label="{label}" style="max-width:100%;height:auto" ', 1
        )

    def _repr_mimebundle_(
        self,
        include: Collection[str] | None = None,  # noqa: ARG002, part of IPython's protocol
        exclude: Collection[str] | None = None,  # noqa: ARG002
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the specification, and a picture for viewers that do not draw specifications."""
        bundle: dict[str, Any] = {_MIME_TYPE: self.spec, "text/plain": repr(self)}
        metadata = {}
        with contextlib.suppress(MissingPackageError):
            png = bundle["image/png"] = self.content("png")
            width, height = (pixels // _SCALE for pixels in struct.unpack(">II", png[16:24]))
            metadata["image/png"] = {"width": width, "height": height}
        return bundle, metadata


def check_plot(path: str | os.PathLike[str]) -> None:
    """Check before any timing that a plot of this file type can be written.

    Raises:
        InputError: the file type is unknown, or vl-convert-python is missing and needed for it.
    """
    file_type = _file_type(Path(path).suffix)
    require(
        file_type in FILE_TYPES,
        f"{path}: a plot's file name must end in one of "
        f"{', '.join(f'.{name}' for name in FILE_TYPES)}",
    )
    if file_type != "json":
        _converter()


def _file_type(suffix: str) -> str:
    return suffix.removeprefix(".").lower()


def _converter() -> Any:
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "pictures of plots require vl-convert-python, which is not installed; run pip install "
            "'convtime[plot]', or write the plot to a .json file"
        ) from error
    return vl_convert


def _convert(function: str, spec: Spec, **options: Any) -> Any:
    # Specifications contain their data: nothing may be loaded from elsewhere.
    return getattr(_converter(), function)(json_of(spec), allowed_base_urls=[], **options)


def json_of(spec: Mapping[str, Any]) -> str:
    """Return a specification, or what contains some, as compact JSON."""
    # Vega leaves out what is null; infinite limits of intervals are not numbers of JSON.
    return json.dumps(finite(spec), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def written(text: str, longest: int = _LONGEST) -> str:
    """Return text of a user for a figure: without control characters, and shortened."""
    # Vega may cut what it shows of a text within a character that UTF-16 has as a pair.
    safe = _PAIR.sub(lambda pair: f"\\U{ord(pair[0]):08x}", printable(text[: longest + 1]))
    return safe if len(safe) <= longest else safe[: longest - 1] + "…"


def axis_title(text: str) -> str:
    """Return a title for an axis.

    Vega-Lite can build expressions with it, in which it does not escape backslashes.
    """
    return written(text).replace("\\", "/").replace('"', "'")


def labels(names: Iterable[str]) -> list[str]:
    """Return labels of rows or series: :func:`written`, and distinct."""
    distinct: dict[str, None] = {}
    for name in names:
        label = first = written(name, _LONGEST_LABEL)
        count = 1
        while label in distinct:
            count += 1
            label = f"{first} ({count})"
        distinct[label] = None
    return list(distinct)


def numbers(values: Iterable[float | None], factor: float = 1.0) -> list[float | None]:
    """Return values in another unit, rounded to six or more digits; None for what is not finite."""
    scaled = factor * np.array(values if isinstance(values, Sequence) else [*values], dtype=float)
    finite = np.isfinite(scaled)
    sizes = np.abs(scaled[finite & (scaled != 0)])
    if sizes.size:
        smallest, largest = (int(np.floor(np.log10(end))) for end in (sizes.min(), sizes.max()))
        decimals = min(_DIGITS - 1 - smallest, _MOST_DIGITS - 1 - largest, _MOST_DECIMALS)
        scaled = np.round(scaled, decimals)
    pairs = zip(scaled.tolist(), finite, strict=True)
    return [value if is_finite else None for value, is_finite in pairs]


def microseconds(seconds: Iterable[float | None]) -> list[float | None]:
    return numbers(seconds, 1e6)


def intervals(
    lows: Sequence[float], highs: Sequence[float], factor: float = 1.0
) -> dict[str, list[float | None]]:
    """Return the columns ``low`` and ``high`` in another unit; None if either end is unbounded."""
    low, high = numbers(lows, factor), numbers(highs, factor)
    for index, ends in enumerate(zip(low, high, strict=True)):
        if None in ends:
            low[index] = high[index] = None
    return {"low": low, "high": high}


def columns(**named: Sequence[Any]) -> Spec:
    """Return the data of a view, whose fields are columns of one length."""
    values = {name: [*column] for name, column in named.items()}
    return {"data": {"values": [values]}, "transform": [{"flatten": [*named]}]}


def quantity(field: str, title: str, *, axis: Spec | None = None, **scale: Any) -> Spec:
    """Return the encoding of a numeric field, whose axis need not contain 0."""
    encoding = {"field": field, "type": "quantitative", "title": axis_title(title)}
    # Nice ends of a logarithmic axis would be powers of ten; Vega warns of "zero" for such an axis.
    usual = {"nice": False, "padding": 8} if scale.get("type") == "log" else {"zero": False}
    return encoding | {"scale": usual | scale} | ({} if axis is None else {"axis": axis})


def series_color(names: Sequence[str], palette: Sequence[str] = SERIES) -> Spec:
    """Return the encoding of the field ``series`` by color."""
    colors = [palette[index % len(palette)] for index in range(len(names))]
    return {
        "field": "series",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [*names], "range": colors},
    }


def series_offset(names: Sequence[str]) -> Spec:
    """Return the encoding of the field ``series`` by an offset within a row or column."""
    return {"field": "series", "type": "nominal", "scale": {"domain": [*names]}}


def scale_for(values: Iterable[float | None]) -> Spec:
    """Return a logarithmic scale for values of different magnitudes, all above 0, else nothing."""
    known = [value for value in values if value is not None]
    is_wide = bool(known) and 0 < _LOGARITHMIC_FROM * min(known) <= max(known)
    return {"type": "log"} if is_wide else {}


def kept(values: Sequence[float | None], most: int) -> list[int]:
    """Return the indices of at most ``most`` values.

    Half of them are evenly spaced, and the others are the extremes of each stretch.
    """
    if len(values) <= most:
        return [*range(len(values))]
    stretches = most // 4
    length = -(-len(values) // stretches)
    padded = np.full(stretches * length, np.nan)
    padded[: len(values)] = np.array(values, dtype=float)
    rows = padded.reshape(stretches, length)
    known = ~np.isnan(rows)
    has_known = known.any(axis=1)
    starts = (length * np.arange(stretches))[has_known]
    lowest = np.where(known, rows, np.inf)[has_known].argmin(axis=1)
    highest = np.where(known, rows, -np.inf)[has_known].argmax(axis=1)
    spaced = np.linspace(0, len(values) - 1, most // 2).astype(int)
    indices: list[int] = np.unique(
        np.concatenate((spaced, starts + lowest, starts + highest))
    ).tolist()
    return indices


def thinned(shown: int, count: int, what: str) -> str:
    """Return a remark for a description if not all of something are shown; otherwise nothing."""
    if shown == count:
        return ""
    return f" {shown:,} of {count:,} {what} are shown, with the extremes of each stretch."
