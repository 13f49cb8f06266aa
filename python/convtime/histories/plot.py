"""Plot times over commits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.errors import InputError, shown
from convtime.core.plot import COLORS, file_content, microseconds, new_figure
from convtime.core.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convtime.histories.result import History, Series

_MOST_PANELS = 12
_MOST_TICKS = 16


def history_figure(history: History, names: Sequence[str] | None = None) -> Figure:
    """Draw a panel for each test; see :meth:`History.plot`.

    Raises:
        InputError: a name is unknown, or matplotlib is missing.
    """
    by_name: dict[str, list[Series]] = {}
    for series in history.series:
        by_name.setdefault(series.name, []).append(series)
    for name in names or ():
        if name not in by_name:
            raise InputError(f"names must be of tests in the history, got {shown(name)}")
    changed = [series.name for series, _ in history.changes]
    wanted = list(dict.fromkeys(names or changed or by_name))[:_MOST_PANELS]
    figure: Figure = new_figure(9, 0.6 + 2.2 * len(wanted))
    panels = figure.subplots(len(wanted), 1, squeeze=False, sharex=True)
    for (panel,), name in zip(panels, wanted, strict=True):
        _draw(panel, by_name[name])
        panel.set_title(printable(name), fontsize=9, parse_math=False)
        panel.set_ylabel("time (µs)", fontsize=8)
        panel.grid(alpha=0.25)
    step = math.ceil(len(history.runs) / _MOST_TICKS)
    ticks = range(0, len(history.runs), step)
    labels = [printable(history.runs[tick].label) for tick in ticks]
    panels[-1][0].set_xticks(ticks, labels, fontsize=7, rotation=45, ha="right", parse_math=False)
    return figure


def draw_history(history: History, suffix: str, names: Sequence[str] | None = None) -> bytes:
    """Return the file content of :func:`history_figure`, whose type the suffix determines."""
    return file_content(history_figure(history, names), suffix)


def _draw(panel: Any, of_one_test: Sequence[Series]) -> None:
    hardware: dict[int, str] = {}
    for series in of_one_test:
        hardware |= dict.fromkeys(series.runs, series.hardware)
    breaks = _breaks(hardware)
    for series in of_one_test:
        for begin, stop in _unbroken(series.runs, breaks):
            places = series.runs[begin:stop]
            middle, low, high = (
                microseconds(each[begin:stop]) for each in (series.seconds, series.low, series.high)
            )
            errors = [_distances(middle, ends) for ends in (low, high)]
            panel.errorbar(
                places,
                middle,
                yerr=errors,
                fmt="o-",
                markersize=3,
                linewidth=0.8,
                elinewidth=0.8,
                color=COLORS["convtime"],
            )
        for change in series.changes:
            place = _before(series.runs, change.run)
            ends = (_before(series.runs, end) for end in (change.earliest, change.latest))
            panel.axvline(place, color=COLORS["PyTorch"])
            panel.axvspan(*ends, color=COLORS["PyTorch"], alpha=0.2, linewidth=0)
            panel.annotate(
                f"{change.ratio.value:.3f}× since {printable(change.commit)}",
                (place, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -9),
                textcoords="offset points",
                fontsize=7,
                parse_math=False,
            )
    for place in breaks:
        panel.axvline(place - 0.5, color="black", linestyle=":")
        panel.annotate(
            printable(hardware[place]),
            (place - 0.5, 0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=7,
            parse_math=False,
        )


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


def _distances(middle: Sequence[float], ends: Sequence[float]) -> list[float]:
    """Return the lengths of error bars; 0 where an interval is unknown."""
    pairs = zip(middle, ends, strict=True)
    return [abs(end - value) if math.isfinite(end) else 0.0 for value, end in pairs]
