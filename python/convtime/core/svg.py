"""Small SVG pictures, drawn in the color of the surrounding text.

They are readable in light and dark themes and do not rely on color. Each picture has a text
description for screen readers. All text is escaped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from convtime.core.text import printable

_WIDTH = 420.0
_LINE = 16.0  # height of a text line
_MARGIN = 4.0
_NAMES = 0.35 * _WIDTH  # where the names of rows end
_LONGEST = 22  # characters of a name; tables show the full name
_OUTERMOST = 0.01  # share of the samples at each end that may be outside the scale


def histogram(values: Sequence[float], middle: float, write: Callable[[float], str]) -> str:
    """Draw a histogram; the outermost bars include outliers.

    Args:
        values: at least one finite number.
        middle: value at which to draw a line across.
        write: function that formats a value.
    """
    ordered = sorted(values)
    beyond = math.floor(_OUTERMOST * len(ordered))
    low, high = min(ordered[beyond], middle), max(ordered[-1 - beyond], middle)
    bars = max(1, min(60, 2 * math.ceil(math.sqrt(len(ordered)))))
    scale = _Scale(low, high)
    counts = [0] * bars
    for value in ordered:
        counts[min(bars - 1, max(0, int(scale.share(value) * bars)))] += 1
    height, width = 60.0, scale.length / bars
    drawn = [
        _rectangle(
            _MARGIN + place * width,
            height * (1 - count / max(counts)),
            width - 0.5,
            height * count / max(counts),
            opacity=0.6,
        )
        for place, count in enumerate(counts)
        if count
    ]
    at = scale.at(middle)
    drawn.append(_line(at, 0, at, height))
    below = height + _LINE - 3
    drawn.append(_text(_MARGIN, below, write(low), "start"))
    drawn.append(_text(_WIDTH - _MARGIN, below, write(high), "end"))
    told = f"histogram of {len(values)} samples around {write(middle)}"
    return _picture(drawn, height + _LINE, told)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value with an interval, which may be unbounded."""

    label: str
    value: float
    low: float
    high: float


def ratios(rows: Sequence[Estimate], margin: float) -> str:
    """Draw ratios with intervals, one per line, and a line at 1; an empty string without ratios.

    Args:
        rows: the ratios.
        margin: half-width of the band around 1.
    """
    if not rows:
        return ""
    ends = [end for row in rows for end in (row.value, row.low, row.high) if math.isfinite(end)]
    ends += [1 - 1.5 * margin, 1 + 1.5 * margin]
    edge = 0.05 * (max(ends) - min(ends))
    scale = _Scale(min(ends) - edge, max(ends) + edge, start=_NAMES)
    height = _LINE * len(rows)
    left, right = scale.at(1 - margin), scale.at(1 + margin)
    drawn = [_rectangle(left, 0, right - left, height, opacity=0.15)]
    drawn.append(_line(scale.at(1), 0, scale.at(1), height, opacity=0.5))
    for place, row in enumerate(rows):
        middle = _LINE * (place + 0.5)
        drawn.append(_text(_NAMES - 8, middle + 4, _shortened(row.label), "end"))
        if math.isfinite(row.value):
            drawn.append(_line(scale.at(row.low), middle, scale.at(row.high), middle, width=2))
            drawn.append(_dot(scale.at(row.value), middle))
    for end, anchor in ((scale.low, "start"), (1, "middle"), (scale.high, "end")):
        drawn.append(_text(scale.at(end), height + _LINE - 3, f"{end:.3g}", anchor))
    told = ", ".join(f"{row.label} {row.value:.4g}" for row in rows)
    return _picture(drawn, height + _LINE, f"{told}; 1 is the reference")


def bars(rows: Sequence[tuple[str, float]]) -> str:
    """Draw shares of a whole, one per line."""
    drawn = []
    for place, (label, share) in enumerate(rows):
        top = _LINE * place
        width = max(0.5, (_WIDTH - _NAMES - 40) * share)
        drawn.append(_text(_NAMES - 8, top + 12, _shortened(label), "end"))
        drawn.append(_rectangle(_NAMES, top + 2, width, _LINE - 4, opacity=0.6))
        drawn.append(_text(_NAMES + width + 4, top + 12, f"{share:.0%}", "start"))
    told = ", ".join(f"{label} {share:.0%}" for label, share in rows)
    return _picture(drawn, _LINE * len(rows), told)


def course(times: Sequence[float], values: Sequence[float | None], labels: tuple[str, str]) -> str:
    """Draw values over time, with gaps at unknown values.

    Args:
        times: ascending times, one per value.
        values: values; at least one must be known.
        labels: the lowest and the highest value, formatted.
    """
    known = [value for value in values if value is not None]
    across, up = _Scale(times[0], times[-1], start=0.2 * _WIDTH), _Scale(min(known), max(known))
    height = 48.0
    pieces: list[list[str]] = [[]]
    for time, value in zip(times, values, strict=True):
        if value is None:
            pieces.append([])
        else:
            y = 2 + (height - 4) * (1 - up.share(value))
            pieces[-1].append(f"{across.at(time):.1f},{y:.1f}")
    drawn = [
        f"<polyline points='{' '.join(piece)}' fill='none' stroke='currentColor'/>"
        for piece in pieces
        if piece
    ]
    drawn.append(_text(across.start - 8, 12, labels[1], "end"))
    drawn.append(_text(across.start - 8, height - 2, labels[0], "end"))
    return _picture(drawn, height, f"between {labels[0]} and {labels[1]}")


@dataclasses.dataclass(frozen=True)
class _Scale:
    """Map values between two limits to positions in the picture."""

    low: float
    high: float
    start: float = _MARGIN

    @property
    def length(self) -> float:
        return _WIDTH - _MARGIN - self.start

    def share(self, value: float) -> float:
        """Return 0 at the lower end and 1 at the upper end; values beyond are clamped."""
        if self.low >= self.high:
            return 0.5
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def at(self, value: float) -> float:
        return self.start + self.length * self.share(value)


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"


def _picture(drawn: Iterable[str], height: float, told: str) -> str:
    said = escape(printable(told))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH:g} {height:g}' "
        f"width='{_WIDTH:g}' height='{height:g}' role='img' aria-label='{said}' "
        f"font-family='inherit' font-size='11'><title>{said}</title>{''.join(drawn)}</svg>"
    )


def _rectangle(x: float, y: float, width: float, height: float, *, opacity: float) -> str:
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(width, 0.5):.1f}' height='{height:.1f}' "
        f"fill='currentColor' fill-opacity='{opacity}'/>"
    )


def _line(
    x1: float, y1: float, x2: float, y2: float, *, width: float = 1.5, opacity: float = 1.0
) -> str:
    return (
        f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='currentColor' "
        f"stroke-width='{width}' stroke-opacity='{opacity}'/>"
    )


def _dot(x: float, y: float) -> str:
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='currentColor'/>"


def _text(x: float, y: float, content: str, anchor: str) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='currentColor'>"
        f"{escape(printable(content))}</text>"
    )
