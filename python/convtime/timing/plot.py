"""Figures of samples, of comparisons, and of rows of times with their ratios."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from convtime.device.clock_trace import THROTTLED_BELOW, ClockReading
from convtime.view.figure import (
    BLUE,
    GREEN,
    ORANGE,
    Figure,
    Spec,
    columns,
    intervals,
    kept,
    labels,
    microseconds,
    numbers,
    quantity,
    scale_for,
    series_color,
    series_offset,
    thinned,
    written,
)
from convtime.view.wording import format_estimate, format_seconds

if TYPE_CHECKING:
    from convtime.timing.comparison import Comparison
    from convtime.timing.measurement import Measurement
    from convtime.timing.verdict import Ratio

WIDTH = 560  # pixels of a panel
_TIME = "time (µs)"
_MOST_POINTS = 160
_MOST_BATCHES = 100
_MOST_BARS = 50
_MOST_QUANTILES = 41
_OUTERMOST = 0.01  # share of the samples at each end that may be outside of the axis
_MOST_OF_A_NAME = 36  # characters, in front of a verdict
_ROW = 24  # pixels


def distribution_figure(measured: Measurement) -> Figure:
    """Draw a histogram of the samples, with the median and its interval."""
    samples = np.array([each for each in measured.seconds if math.isfinite(each)])
    low, high, beyond = _range_without_outliers(samples, measured.median)
    bars = int(min(_MOST_BARS, 2 * math.ceil(math.sqrt(len(samples)))))
    counts, edges = np.histogram(np.clip(samples, low, high), bars, (low, high))
    (used,) = counts.nonzero()
    ends = columns(
        start=microseconds(edges[used]),
        end=microseconds(edges[used + 1]),
        samples=counts[used].tolist(),
    )
    time = quantity("start", _TIME, nice=False)
    histogram = {
        **ends,
        "mark": {"type": "bar", "color": BLUE, "opacity": 0.6},
        "encoding": {
            "x": {**time, "bin": "binned"},
            "x2": {"field": "end"},
            "y": {"field": "samples", "type": "quantitative", "title": "samples", "stack": None},
        },
    }
    outliers = f"; the outermost bars include {beyond} samples beyond" if beyond else ""
    estimate = format_estimate(measured.median, *measured.median_interval)
    return Figure(
        title=measured.name,
        description=(
            f"Histogram of {len(samples):,} samples of {measured.name}. The median is {estimate}; "
            f"the samples range from {format_seconds(samples.min())} to "
            f"{format_seconds(samples.max())}{outliers}."
        ),
        view={"width": WIDTH, "height": 120, "layer": [histogram, _median(measured, "x")]},
        key=f"line: median; band: its 95 % interval{outliers}",
    )


def _range_without_outliers(
    samples: np.ndarray[tuple[int], np.dtype[np.float64]], median: float
) -> tuple[float, float, int]:
    """Return the ends of an axis, and the number of samples beyond them."""
    ordered = np.sort(samples)
    rank = int(_OUTERMOST * len(ordered))
    low, high = (float(end) for end in (ordered[rank], ordered[-1 - rank]))
    if ordered[-1] - ordered[0] <= 3 * (high - low):
        low, high = float(ordered[0]), float(ordered[-1])
    low, high = min(low, median), max(high, median)
    if high - low <= 1e-9 * high:
        edge = max(1e-3 * high, 1e-12)
        low, high = low - edge, high + edge
    return low, high, int(((samples < low) | (samples > high)).sum())


def _median(measured: Measurement, channel: str, **scale: Any) -> Spec:
    """Return a layer with the median, and a band for its interval if there is one."""
    ends = measured.median_interval
    low, median, high = microseconds((ends[0], measured.median, ends[1]))
    across = quantity("median", _TIME, **scale)
    line = {"mark": {"type": "rule", "color": ORANGE}, "encoding": {channel: across}}
    band = {
        "mark": {"type": "rect", "color": ORANGE, "opacity": 0.25},
        "encoding": {channel: quantity("low", _TIME, **scale), f"{channel}2": {"field": "high"}},
    }
    return {
        "data": {"values": [{"low": low, "median": median, "high": high}]},
        "layer": [band, line] if all(map(math.isfinite, ends)) else [line],
    }


def sample_figure(measured: Measurement) -> Figure:
    """Draw the samples in order, discarded samples next to them, and the clocks.

    If known, the GPU's power during the run is drawn below.
    """
    places = kept(measured.seconds, _MOST_POINTS)
    rows: list[Spec] = [_samples_and_discarded(measured, places)]
    key = ["line: median", "band: its 95 % interval"]
    if any(measured.throttled):
        key.append(f"cross: below {THROTTLED_BELOW:.0%} of the highest clock")
    if any(hz is not None for hz in measured.sm_clocks_hz):
        rows.append(_clocks(measured))
        key += ["dotted: highest clock"] * (measured.max_sm_clock_hz is not None)
    if any(reading.power is not None for reading in measured.conditions):
        rows.append(_power(measured.conditions))
    estimate = format_estimate(measured.median, *measured.median_interval)
    return Figure(
        title=measured.name,
        description=(
            f"Samples of {measured.name} in the order taken; their median is {estimate}. "
            f"{len(measured.discarded):,} other samples were discarded."
            + thinned(len(places), len(measured.seconds), "samples")
        ),
        view=rows[0] if len(rows) == 1 else {"vconcat": rows},
        key="; ".join(key),
    )


def _samples_and_discarded(measured: Measurement, places: Sequence[int]) -> Spec:
    count, discarded = len(measured.seconds), len(measured.discarded)
    share = max(discarded, count / 8) / (max(count, discarded) + max(discarded, count / 8))
    if not discarded:
        return _samples(measured, places, WIDTH)
    samples = _samples(measured, places, int(WIDTH * (1 - share)))
    shown = kept(measured.discarded, _MOST_POINTS)
    beside = {
        **columns(sample=shown, time=microseconds(measured.discarded[place] for place in shown)),
        "width": int(WIDTH * share),
        "height": samples["height"],
        "mark": {"type": "point", "shape": "cross", "filled": True, "size": 16, "color": BLUE},
        "encoding": {
            "x": quantity("sample", f"{discarded} discarded", axis={"labels": False}),
            "y": quantity("time", _TIME, axis={"labels": False, "title": None}, **_scale(measured)),
        },
    }
    return {"hconcat": [samples, beside], "resolve": {"scale": {"y": "shared"}}}


def _scale(measured: Measurement) -> Spec:
    return scale_for((*measured.seconds, *measured.discarded))


def _samples(measured: Measurement, places: Sequence[int], width: int) -> Spec:
    time = quantity("time", _TIME, **_scale(measured))
    position = _position(measured)
    points = {
        **columns(sample=places, time=microseconds(measured.seconds[place] for place in places)),
        "mark": {"type": "point", "filled": True, "size": 12, "opacity": 1, "color": BLUE},
        "encoding": {"x": position, "y": time},
    }
    layers = [_median(measured, "y", **_scale(measured)), points]
    throttled = [place for place, is_so in enumerate(measured.throttled) if is_so]
    if throttled:
        times = [measured.seconds[place] for place in throttled]
        shown = kept(times, _MOST_POINTS)
        layers.append(
            points
            | columns(
                sample=[throttled[place] for place in shown],
                time=microseconds(times[place] for place in shown),
            )
            | {"mark": {"type": "point", "shape": "cross", "filled": True, "color": ORANGE}}
        )
    borders = [
        place - 0.5
        for place, (before, after) in enumerate(itertools.pairwise(measured.batches), start=1)
        if before != after
    ]
    if 0 < len(borders) <= _MOST_BATCHES:
        layers.append(
            {
                **columns(border=borders),
                "mark": {"type": "rule", "style": "ink", "strokeWidth": 0.5, "opacity": 0.5},
                "encoding": {"x": position | {"field": "border"}},
            }
        )
    return {"width": width, "height": 200, "layer": layers}


def _position(measured: Measurement) -> Spec:
    return quantity("sample", "sample", domain=[-0.5, len(measured.seconds) - 0.5], nice=False)


def _clocks(measured: Measurement) -> Spec:
    clocks = numbers(measured.sm_clocks_hz, 1e-6)
    places = kept(clocks, _MOST_POINTS)
    clock = quantity("clock", "SM clock (MHz)")
    layers: list[Spec] = [
        {
            **columns(sample=places, clock=[clocks[place] for place in places]),
            "mark": {"type": "point", "filled": True, "size": 12, "opacity": 1, "color": BLUE},
            "encoding": {"x": _position(measured), "y": clock},
        }
    ]
    if measured.max_sm_clock_hz is not None:
        layers.append(
            {
                "data": {"values": [{"clock": 1e-6 * measured.max_sm_clock_hz}]},
                "mark": {"type": "rule", "style": "ink", "strokeDash": [2, 2]},
                "encoding": {"y": clock},
            }
        )
    return {"width": WIDTH, "height": 90, "layer": layers}


def _power(readings: Sequence[ClockReading]) -> Spec:
    known = [(each.seconds, each.power) for each in readings if each.power is not None]
    shown = kept([power for _, power in known], _MOST_POINTS)
    return {
        **columns(
            seconds=numbers(known[place][0] for place in shown),
            power=numbers(known[place][1] for place in shown),
        ),
        "width": WIDTH,
        "height": 90,
        "mark": {"type": "line", "color": BLUE},
        "encoding": {
            "x": quantity("seconds", "seconds, from before the first call until after the last"),
            "y": quantity("power", "power (W)"),
        },
    }


class Spread(NamedTuple):
    """A time with its ends, in seconds; the outer ends may be unknown."""

    middle: float
    low: float
    high: float
    least: float = math.nan
    most: float = math.nan


def comparison_figure(compared: Comparison, baseline: str | None = None) -> Figure:
    """Draw each candidate's times, and its ratio to the baseline with the interval.

    Args:
        compared: comparison to draw.
        baseline: Default: the comparison's.
    """
    baseline = compared.baseline if baseline is None else baseline
    names = list(compared.measurements)
    rows = [_with_verdict(compared, name, baseline) for name in names]
    spreads = [
        Spread(each.median, *(each.quantile(share) for share in (0.25, 0.75, 0.01, 0.99)))
        for each in compared.measurements.values()
    ]
    ratios = [None if name == baseline else compared.ratio(name, baseline) for name in names]
    return Figure(
        title=f"{', '.join(names)}: times, and ratios to {baseline}",
        description=(
            f"Times of {len(names)} candidates, and their ratios to {baseline}: {'; '.join(rows)}."
        ),
        view=times_and_ratios(
            labels(rows), {_TIME: spreads}, ratios, compared.margin, f"ratio to {baseline}"
        ),
        key=(
            "dot: median; bars: quartiles, 1 % to 99 %; ratios with 95 % interval; "
            f"band: ± {compared.margin:.2%}"
        ),
    )


def distributions_figure(compared: Comparison) -> Figure:
    """Draw the cumulative distribution of each candidate's samples."""
    names = labels(compared.measurements)
    measurements = compared.measurements.values()
    shares = np.linspace(_OUTERMOST, 1 - _OUTERMOST, _MOST_QUANTILES)
    times = np.concatenate([np.quantile(each.seconds, shares) for each in measurements])
    medians = ", ".join(
        f"{name} {format_seconds(each.median)}"
        for name, each in zip(names, measurements, strict=True)
    )
    return Figure(
        title=f"{', '.join(names)}: distributions",
        description=(
            f"Cumulative distributions of the times of {len(names)} candidates, from 1 % to 99 % "
            f"of the samples. Medians: {medians}."
        ),
        view={
            **columns(
                series=np.repeat(names, len(shares)).tolist(),
                time=microseconds(times),
                share=numbers(np.tile(100 * shares, len(names))),
            ),
            "width": WIDTH,
            "height": 180,
            "mark": "line",
            "encoding": {
                "x": quantity("time", _TIME, **scale_for(times)),
                "y": quantity("share", "samples below (%)"),
                "order": {"field": "share", "type": "quantitative"},
                "color": series_color(names),
            },
        },
    )


def _with_verdict(compared: Comparison, name: str, baseline: str) -> str:
    shortened = written(name, _MOST_OF_A_NAME)
    if name == baseline:
        return f"{shortened}: baseline"
    agreement = compared.same_results.get(name)
    different = "" if agreement is None or agreement.same is not False else ", OTHER RESULT"
    return f"{shortened}: {compared.verdict(name, baseline)}{different}"


def times_and_ratios(
    rows: Sequence[str],
    times: Mapping[str, Sequence[Spread | None]],
    ratios: Sequence[Ratio | None],
    margin: float,
    ratio_title: str,
) -> Spec:
    """Return a panel of times and a panel of ratios that share their rows.

    Args:
        rows: labels of the rows, from top to bottom; distinct.
        times: the times of each row, by series.
        ratios: the ratio of each row.
        margin: half-width of the band in which times count as equal.
        ratio_title: title of the ratios' axis.
    """
    return {
        "hconcat": [
            times_panel(rows, times, 0.6 * WIDTH),
            ratio_panel(rows, ratios, margin, ratio_title, named=False),
        ],
        "spacing": 12,
    }


def times_panel(
    rows: Sequence[str], times: Mapping[str, Sequence[Spread | None]], width: float = WIDTH
) -> Spec:
    """Return a panel of times with their ends.

    Args:
        rows: labels of the rows, from top to bottom; distinct.
        times: the times of each row, by series.
        width: in pixels.
    """
    known = [
        (row, name, spread)
        for name, spreads in times.items()
        for row, spread in zip(rows, spreads, strict=True)
        if spread is not None
    ]
    middle, low, high, least, most = (
        [spread[place] for _, _, spread in known] for place in range(len(Spread._fields))
    )
    ends = {"middle": microseconds(middle), **intervals(low, high, 1e6)}
    ends |= {"least": microseconds(least), "most": microseconds(most)}
    scale = scale_for(itertools.chain.from_iterable(ends.values()))
    is_several = len(times) > 1
    encoding = {"y": _rows(rows)}
    if is_several:
        encoding["yOffset"] = series_offset([*times])
        encoding["color"] = series_color([*times])
    time = {end: quantity(end, _TIME, **scale) for end in Spread._fields}
    bars = [
        {
            "mark": {"type": "rule", "strokeWidth": width, "color": BLUE},
            "encoding": {"x": time[low], "x2": {"field": high}},
        }
        for low, high, width in (("least", "most", 1), ("low", "high", 2 if is_several else 4))
        if any(end is not None for end in ends[low])
    ]
    dot = {"type": "point", "filled": True, "opacity": 1, "size": 30}
    if not is_several:
        dot["style"] = "ink"
    return {
        **columns(row=[row for row, _, _ in known], series=[name for _, name, _ in known], **ends),
        "width": width,
        "height": _ROW * len(rows),
        "encoding": encoding,
        "layer": [*bars, {"mark": dot, "encoding": {"x": time["middle"]}}],
    }


def _rows(rows: Sequence[str], *, named: bool = True) -> Spec:
    return {
        "field": "row",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [*rows]},
        "axis": {} if named else {"labels": False, "ticks": False},
    }


def ratio_panel(
    rows: Sequence[str],
    ratios: Sequence[Ratio | None],
    margin: float,
    title: str,
    *,
    named: bool = True,
) -> Spec:
    """Return a panel of ratios with their intervals; an unbounded one reaches the panel's ends.

    Args:
        rows: labels of the rows, from top to bottom; distinct.
        ratios: the ratio of each row.
        margin: half-width of the band in which times count as equal.
        title: title of the axis.
        named: whether the panel shows the labels.
    """
    known = [*_known(rows, ratios)]
    limits = [end for _, ratio in known for end in (ratio.value, ratio.low, ratio.high)]
    limits = [*filter(math.isfinite, limits), 1 - 1.5 * margin, 1 + 1.5 * margin]
    edge = 0.05 * (max(limits) - min(limits))
    lowest, highest = min(limits) - edge, max(limits) + edge

    def across(field: str) -> Spec:
        return quantity(field, title, domain=[lowest, highest], nice=False)

    band = {
        "data": {"values": [{"low": 1 - margin, "high": 1 + margin}]},
        "mark": {"type": "rect", "color": GREEN, "opacity": 0.2},
        "encoding": {"x": across("low"), "x2": {"field": "high"}},
    }
    one = {
        "data": {"values": [{"one": 1}]},
        "mark": {"type": "rule", "style": "ink"},
        "encoding": {"x": across("one")},
    }
    estimates = {
        **columns(
            row=[row for row, _ in known],
            ratio=numbers([ratio.value for _, ratio in known]),
            low=numbers([max(ratio.low, lowest) for _, ratio in known]),
            high=numbers([min(ratio.high, highest) for _, ratio in known]),
        ),
        "encoding": {"y": _rows(rows, named=named)},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2, "color": BLUE},
                "encoding": {"x": across("low"), "x2": {"field": "high"}},
            },
            {
                "mark": {
                    "type": "point", "filled": True, "opacity": 1, "size": 30, "style": "ink"
                },
                "encoding": {"x": across("ratio")},
            },
        ],
    }  # fmt: skip
    return {
        "width": (1 if named else 0.4) * WIDTH,
        "height": _ROW * len(rows),
        "layer": [band, one, estimates],
    }


def _known(rows: Sequence[str], ratios: Sequence[Ratio | None]) -> Iterator[tuple[str, Ratio]]:
    for row, ratio in zip(rows, ratios, strict=True):
        if ratio is not None and math.isfinite(ratio.value):
            yield row, ratio
