"""Figure of attained rates below the device's ceilings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from convtime.view.figure import (
    Figure,
    Spec,
    columns,
    intervals,
    labels,
    numbers,
    quantity,
    series_color,
    written,
)
from convtime.view.wording import counted

if TYPE_CHECKING:
    from convtime.timing.measurement import Ceilings, Measurement

_WIDTH, _HEIGHT = 560, 260
_TERA = 1e-12


class _Point(NamedTuple):
    series: str
    label: str
    intensity: float
    rate: float
    low: float
    high: float
    ceilings: Ceilings


def rooflines(title: str, measured: Iterable[tuple[str, str, Measurement]]) -> Iterator[Figure]:
    """Yield a roofline if FLOPs, bytes and ceilings of any measurement are known.

    Args:
        title: what was measured.
        measured: measurements with their series and their label.
    """
    points = [*_points(measured)]
    if not points:
        return
    names = list(dict.fromkeys(point.series for point in points))
    roofs: dict[str, Ceilings] = {}
    for point in points:
        roofs.setdefault(point.ceilings.matmul_dtype, point.ceilings)
    yield Figure(
        title=f"{title}: roofline",
        description=(
            f"Rates of {counted(len(points), 'measurement')} against arithmetic intensity, below "
            f"what this device attained: {'; '.join(map(str, roofs.values()))}."
        ),
        view={
            "width": _WIDTH,
            "height": _HEIGHT,
            "layer": [_roofs([*roofs.values()], points), _dots(points, names)],
        },
        key="dot: FLOPs over the median; bar: its 95 % interval; line: a large copy and matmul",
    )


def _points(measured: Iterable[tuple[str, str, Measurement]]) -> Iterator[_Point]:
    for series, label, each in measured:
        if each.flops and each.nbytes and each.ceilings is not None and each.median > 0:
            low, high = each.median_interval
            yield _Point(
                series,
                label,
                each.flops / each.nbytes,
                each.flops / each.median,
                each.flops / high if math.isfinite(high) else math.nan,
                each.flops / low if low > 0 else math.nan,
                each.ceilings,
            )


def _roofs(roofs: Sequence[Ceilings], points: Sequence[_Point]) -> Spec:
    """Return a line per ceiling: the copy's slope up to the matmul's rate."""
    corners: list[tuple[str, float, float]] = []
    for roof in roofs:
        ridge = roof.flops_per_second / roof.bytes_per_second
        ends = [ridge, *(point.intensity for point in points)]
        for intensity in (0.5 * min(ends), ridge, 2 * max(ends)):
            rate = min(roof.flops_per_second, intensity * roof.bytes_per_second)
            corners.append((roof.matmul_dtype, intensity, rate))
    return {
        **columns(
            roof=[written(dtype) for dtype, _, _ in corners],
            intensity=numbers([intensity for _, intensity, _ in corners]),
            rate=numbers([rate for _, _, rate in corners], _TERA),
        ),
        "mark": {"type": "line", "style": "ink"},
        "encoding": {**_encoding(), "detail": {"field": "roof", "type": "nominal"}},
    }


def _dots(points: Sequence[_Point], names: Sequence[str]) -> Spec:
    written_names = dict(zip(names, labels(names), strict=True))
    encoding = _encoding()
    return {
        **columns(
            series=[written_names[point.series] for point in points],
            label=[written(point.label) for point in points],
            intensity=numbers([point.intensity for point in points]),
            rate=numbers([point.rate for point in points], _TERA),
            **intervals([p.low for p in points], [p.high for p in points], _TERA),
        ),
        "encoding": {"x": encoding["x"], "color": series_color([*written_names.values()])},
        "layer": [
            {
                "mark": "rule",
                "encoding": {"y": encoding["y"] | {"field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 1},
                "encoding": {"y": encoding["y"]},
            },
        ],
    }


def _encoding() -> Spec:
    return {
        "x": quantity("intensity", "arithmetic intensity (FLOP/byte)", type="log"),
        "y": quantity("rate", "rate (TFLOP/s)", type="log"),
    }
