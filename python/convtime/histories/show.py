"""Show a history: its changes first, then remarks, series and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from convtime.histories.plot import history_figure as plot
from convtime.view.figure import Figure
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.safe_text import counted
from convtime.view.units import format_estimate

if TYPE_CHECKING:
    from convtime.histories.result import ChangePoint, History, Series

_CHANGES = ("verdict", "ratio [95 %]", "since", "± 1 commit", "by chance", "test")
_SERIES = ("test", "runs", "newest [95 %]", "between runs", "changes", "hardware and conditions")
_RUNS = ("run", "date", "tests", "tool", "file")


def line(history: History) -> str:
    """Return one line with the counts."""
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
    """Yield everything."""
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
    """Yield the figures, the most informative first."""
    if history.series:
        yield plot(history)
