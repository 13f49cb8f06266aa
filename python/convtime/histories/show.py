"""Show a history: its changes first, then remarks, series and runs; and plot times over commits."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
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
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.wording import counted, format_estimate

if TYPE_CHECKING:
    from convtime.histories.result import ChangePoint, History, Series

_CHANGES = ("verdict", "ratio [95 %]", "since", "± 1 commit", "by chance", "test")
_SERIES = ("test", "runs", "newest [95 %]", "between runs", "changes", "hardware and conditions")
_RUNS = ("run", "date", "tests", "tool", "file")
_WIDTH = 640
_MOST_PANELS = 12
_MOST_TICKS = 16
_MOST_POINTS = 500
_LONGEST_TICK = 24


def line(history: History) -> str:
    runs, series = history.runs, history.series
    by_date = sorted(runs, key=lambda run: run.seconds_since_1970)  # their order is by commit
    span = f"{by_date[0].date[:10]} to {by_date[-1].date[:10]}"
    unjudged = sum(not one.judged for one in series)
    few = f", {unjudged} with too few runs to judge" if unjudged else ""
    return (
        f"{counted(len(runs), 'run')} ({span}), {len(series)} series{few}: "
        f"{counted(len(history.changes), 'change')}, {history.expected_false_alarms:.2g} false "
        "alarms expected"
    )


def printed(history: History) -> Iterator[Block]:
    """Yield the changes, the newest first, and the remarks."""
    yield Line(line(history), role="answer")
    yield Table(
        _CHANGES,
        [_row(history, series, change) for series, change in history.changes],
        right=_CHANGES[1:5],
    )
    yield Sentences(history.remarks, role="caution")


def details(history: History) -> Iterator[Block]:
    yield from printed(history)
    yield Table(_SERIES, [*map(_series_row, history.series)], right=_SERIES[1:5], title="series")
    counts = Counter(number for series in history.series for number in series.runs)
    rows = [
        (run.label, run.date, str(counts[number]), run.tool, run.file)
        for number, run in enumerate(history.runs)
    ]
    yield Table(_RUNS, rows, right=("tests",), title="runs, in order")


def _row(
    history: History, series: Series, change: ChangePoint
) -> tuple[str | tuple[str, ...], ...]:
    remarks = [f"95 %: {_span(change)}"]
    if sum(other.name == series.name for other in history.series) > 1:
        remarks.append(f"on {series.hardware}; {series.conditions}")
    remarks += [f"also: {', '.join(change.differs)}"] if change.differs else []
    return (
        change.verdict,
        str(change.ratio),
        change.commit,
        f"{change.certainty:.0%}",
        f"{change.p_value:.1g}",
        (series.name, *remarks),
    )


def _span(change: ChangePoint) -> str:
    if len(change.commits) == 1:
        return f"since {change.commits[0]} (before: {change.before})"
    first, *_, last = change.commits
    return f"since one of {len(change.commits)} commits, {first} to {last}"


def _series_row(series: Series) -> tuple[str, ...]:
    deviation = f"{series.deviation:.2%}" if series.judged else ""
    return (
        series.name,
        str(len(series.runs)),
        format_estimate(series.seconds[-1], series.low[-1], series.high[-1]),
        deviation,
        str(len(series.changes)) if series.judged else "too few runs",
        f"{series.hardware}; {series.conditions}",
    )


def figures(history: History) -> Iterator[Figure]:
    if history.series:
        yield plot(history)


def plot(history: History, names: Sequence[str] | None = None) -> Figure:
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
    others = len(by_name) - len(wanted)
    left_out = f" {others:,} other tests are not shown." if others else ""
    return Figure(
        title="Times over commits",
        description=(
            f"Times of {counted(len(wanted), 'test')} over {counted(len(history.runs), 'run')}, "
            f"with {counted(sum(name in wanted for name in changed), 'change point')}."
            + left_out
            + thinned(sum(min(count, _MOST_POINTS) for count in points), sum(points), "times")
        ),
        view={"vconcat": panels, "spacing": 12},
        key="dot: median; bar: its 95 % interval; line and band: a change, and where it may be",
    )


def _panel(name: str, of_one_test: Sequence[Series], across: Spec) -> Spec:
    hardware: dict[int, str] = {}
    for series in of_one_test:
        hardware |= dict.fromkeys(series.runs, series.hardware)
    # The runs whose hardware differs from that of the run before.
    pairs = itertools.pairwise(sorted(hardware))
    breaks = [run for before, run in pairs if hardware[run] != hardware[before]]
    layers = [_times(of_one_test, breaks, across)]
    if any(series.changes for series in of_one_test):
        layers.append(_marked_changes(of_one_test, across))
    if breaks:
        layers.append(_marked_breaks(breaks, [hardware[run] for run in breaks], across))
    return {"title": written(name), "width": _WIDTH, "height": 130, "layer": layers}


def _times(of_one_test: Sequence[Series], breaks: Sequence[int], across: Spec) -> Spec:
    """Return a layer with the medians, their intervals, and a line for each unbroken stretch."""
    stretches: dict[tuple[int, int], int] = {}
    points: list[tuple[int, int, float, float, float]] = []
    for number, series in enumerate(of_one_test):
        for index in kept(series.seconds, _MOST_POINTS):
            run, median = series.runs[index], series.seconds[index]
            stretch = stretches.setdefault((number, bisect_right(breaks, run)), len(stretches))
            points.append((run, stretch, median, series.low[index], series.high[index]))
    runs, unbroken, medians, lows, highs = zip(*points, strict=True)
    time = quantity("time", "time (µs)")
    return {
        **columns(
            run=runs,
            stretch=unbroken,
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


def _marked_changes(of_one_test: Sequence[Series], across: Spec) -> Spec:
    """Return a layer with a line for each change point, its band and its label."""
    changes = [(series.runs, change) for series in of_one_test for change in series.changes]
    return {
        **columns(
            run=[_before(runs, change.run) for runs, change in changes],
            begin=[_before(runs, change.earliest) for runs, change in changes],
            end=[_before(runs, change.latest) for runs, change in changes],
            change=[
                written(f"{change.ratio.value:.3f}× since {change.commit}") for _, change in changes
            ],
        ),
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
