"""Figure of times over commits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from convtime.core.errors import InputError, shown
from convtime.view.figure import (
    BLUE,
    ORANGE,
    Figure,
    Spec,
    columns,
    intervals,
    kept,
    microseconds,
    quantity,
    thinned,
    written,
)
from convtime.view.safe_text import counted

if TYPE_CHECKING:
    from convtime.histories.result import History, Series

_WIDTH = 640
_MOST_PANELS = 12
_MOST_TICKS = 16
_MOST_POINTS = 500
_LONGEST_TICK = 24


def history_figure(history: History, names: Sequence[str] | None = None) -> Figure:
    """Draw a panel for each test; see :meth:`History.plot`.

    Raises:
        InputError: a name is unknown.
    """
    by_name: dict[str, list[Series]] = {}
    for series in history.series:
        by_name.setdefault(series.name, []).append(series)
    for name in names or ():
        if name not in by_name:
            raise InputError(f"names must be of tests in the history, got {shown(name)}")
    changed = [series.name for series, _ in history.changes]
    wanted = list(dict.fromkeys(names or changed or by_name))[:_MOST_PANELS]
    across = quantity("run", "", domain=[-0.5, len(history.runs) - 0.5], nice=False)
    across["axis"] = {"labels": False, "ticks": False, "grid": False, "title": None}
    panels = [_panel(name, by_name[name], across) for name in wanted]
    if panels:
        panels[-1]["layer"].append(_ticks(history, across))
    points = [len(series.runs) for name in wanted for series in by_name[name]]
    left_out = f" {len(by_name) - len(wanted):,} other tests are not shown."
    return Figure(
        title="Times over commits",
        description=(
            f"Times of {counted(len(wanted), 'test')} over {counted(len(history.runs), 'run')}, "
            f"with {counted(sum(name in wanted for name in changed), 'change point')}."
            + left_out * (len(by_name) > len(wanted))
            + thinned(sum(min(count, _MOST_POINTS) for count in points), sum(points), "times")
        ),
        view={"vconcat": panels, "spacing": 12},
        key="dot: median; bar: its 95 % interval; line and band: a change, and where it may be",
    )


def _panel(name: str, of_one_test: Sequence[Series], across: Spec) -> Spec:
    hardware: dict[int, str] = {}
    for series in of_one_test:
        hardware |= dict.fromkeys(series.runs, series.hardware)
    breaks = _breaks(hardware)
    changes = [*_changes(of_one_test)]
    layers = [_times(of_one_test, breaks, across)]
    if changes:
        layers.append(_marked_changes(changes, across))
    if breaks:
        layers.append(_marked_breaks(breaks, [hardware[run] for run in breaks], across))
    return {"title": written(name), "width": _WIDTH, "height": 130, "layer": layers}


def _times(of_one_test: Sequence[Series], breaks: Sequence[int], across: Spec) -> Spec:
    """Return a layer with the medians, their intervals, and a line for each unbroken stretch."""
    runs: list[int] = []
    stretches: list[int] = []
    medians: list[float] = []
    lows: list[float] = []
    highs: list[float] = []
    unbroken = (
        (series, *ends) for series in of_one_test for ends in _unbroken(series.runs, breaks)
    )
    for number, (series, begin, stop) in enumerate(unbroken):
        places = [begin + place for place in kept(series.seconds[begin:stop], _MOST_POINTS)]
        stretches += [number] * len(places)
        for column, values in (
            (runs, series.runs), (medians, series.seconds), (lows, series.low), (highs, series.high)
        ):  # fmt: skip
            column += [values[place] for place in places]
    time = quantity("time", "time (µs)")
    return {
        **columns(
            run=runs,
            stretch=stretches,
            time=microseconds(medians),
            **intervals(lows, highs, 1e6),
        ),
        "encoding": {"x": across},
        "layer": [
            {
                "mark": {"type": "line", "color": BLUE, "strokeWidth": 1},
                "encoding": {"y": time, "detail": {"field": "stretch", "type": "nominal"}},
            },
            {
                "mark": {"type": "rule", "color": BLUE},
                "encoding": {"y": time | {"field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 1, "color": BLUE},
                "encoding": {"y": time},
            },
        ],
    }


def _changes(of_one_test: Sequence[Series]) -> Iterator[tuple[float, float, float, str]]:
    """Yield the place of each change point, the ends of its band, and its label."""
    for series in of_one_test:
        for change in series.changes:
            place, begin, end = (
                _before(series.runs, run) for run in (change.run, change.earliest, change.latest)
            )
            yield place, begin, end, written(f"{change.ratio.value:.3f}× since {change.commit}")


def _marked_changes(changes: Sequence[tuple[float, float, float, str]], across: Spec) -> Spec:
    runs, begins, ends, labels = zip(*changes, strict=True)
    return {
        **columns(run=runs, begin=begins, end=ends, change=labels),
        "encoding": {"x": across},
        "layer": [
            {
                "mark": {"type": "rect", "color": ORANGE, "opacity": 0.2},
                "encoding": {"x": across | {"field": "begin"}, "x2": {"field": "end"}},
            },
            {"mark": {"type": "rule", "color": ORANGE}},
            {
                "mark": {"type": "text", "align": "left", "baseline": "top", "dx": 3, "dy": 2},
                "encoding": {"y": {"value": 0}, "text": {"field": "change", "type": "nominal"}},
            },
        ],
    }


def _marked_breaks(breaks: Sequence[int], hardware: Sequence[str], across: Spec) -> Spec:
    return {
        **columns(
            run=[place - 0.5 for place in breaks], hardware=[written(name) for name in hardware]
        ),
        "encoding": {"x": across},
        "layer": [
            {"mark": {"type": "rule", "style": "ink", "strokeDash": [2, 2]}},
            {
                "mark": {"type": "text", "align": "left", "baseline": "bottom", "dx": 3, "dy": -2},
                "encoding": {
                    "y": {"value": "height"},
                    "text": {"field": "hardware", "type": "nominal"},
                },
            },
        ],
    }


def _ticks(history: History, across: Spec) -> Spec:
    """Return the labels of runs: an axis of numbers would only show their indices."""
    ticks = range(0, len(history.runs), math.ceil(len(history.runs) / _MOST_TICKS))
    return {
        **columns(
            run=[*ticks], label=[written(history.runs[tick].label, _LONGEST_TICK) for tick in ticks]
        ),
        "mark": {"type": "text", "angle": -45, "align": "right", "baseline": "top", "dy": 6},
        "encoding": {
            "x": across,
            "y": {"value": "height"},
            "text": {"field": "label", "type": "nominal"},
        },
    }


def _before(runs: Sequence[int], run: int) -> float:
    """Return the middle between a run and the series' run before it."""
    return (runs[runs.index(run) - 1] + run) / 2


def _breaks(hardware: dict[int, str]) -> list[int]:
    """Return the runs whose hardware differs from that of the run before."""
    ordered = sorted(hardware)
    return [run for before, run in itertools.pairwise(ordered) if hardware[run] != hardware[before]]


def _unbroken(runs: Sequence[int], breaks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the stretches of a series' indices without a change of hardware between them."""
    starts = [
        index
        for index in range(1, len(runs))
        if any(runs[index - 1] < place <= runs[index] for place in breaks)
    ]
    return list(zip([0, *starts], [*starts, len(runs)], strict=True))
