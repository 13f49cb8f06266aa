"""Read a history, and find what changed since when."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from convtime.core.checks import described, is_finite, require
from convtime.histories import change_points
from convtime.histories.order import commits_of, in_order
from convtime.histories.reading import read_runs
from convtime.histories.result import ChangePoint, History, Series
from convtime.histories.run import HistoryRun, Kind
from convtime.timing.verdict import Ratio


def history(folder: str | os.PathLike[str], *, false_alarms: float = 0.0005) -> History:
    """Read a history of runs, and find the change points of each test.

    ``pytest --convtime-history FOLDER`` adds a run. The folder may also contain files of
    pytest-benchmark, and other runs that :func:`read_measurements` reads. Runs are ordered by
    commit if git knows the commit among the ancestors of HEAD, in the repository around the folder
    or else around the working directory, and otherwise by date. Times of one test are compared only
    on the same hardware under the same conditions: a change of the hardware is never a change
    point. A test that was renamed begins a series. Files that cannot be read are listed in the
    result's ``remarks``.

    Args:
        folder: the folder; folders in it are read, too.
        false_alarms: expected number of false change points per series without a change, above 0
            and below 1.

    Raises:
        InputError: the folder has no run, or an argument is out of range.
        MissingPackageError: ruptures is not installed (``pip install 'convtime[history]'``).
    """
    require(
        is_finite(false_alarms) and 0 < false_alarms < 1,
        f"false_alarms must be a number above 0 and below 1, got {described(false_alarms)}",
    )
    change_points.import_ruptures()
    unordered, problems = read_runs(folder)
    commits, git_failure = _commits(unordered, Path(folder))
    runs, order_remarks = in_order(unordered, commits)
    unjudged, zeros = _series(runs)
    return History(
        runs=tuple(dataclasses.replace(run, times=()) for run in runs),
        series=tuple(_judged(series, runs, false_alarms) for series in unjudged),
        false_alarms=false_alarms,
        remarks=(*problems, *git_failure, *order_remarks, *zeros),
    )


def _commits(runs: Sequence[HistoryRun], folder: Path) -> tuple[dict[str, int], list[str]]:
    """Return the commits of the repository around the folder or around the working directory.

    They are empty if neither has a commit of any run; a sentence says so if git failed.
    """
    failed = ""
    for directory in (folder, Path.cwd()):
        commits, reason = commits_of(directory)
        if any(run.commit in commits for run in runs):
            return commits, []
        failed = failed or reason
    matters = failed and any(run.commit for run in runs)
    return {}, [f"{failed}, so the date decides the order"] if matters else []


def _series(runs: Sequence[HistoryRun]) -> tuple[list[Series], list[str]]:
    """Return the series without changes, and sentences about times that cannot be judged."""
    times_by_series: dict[tuple[str, Kind], list[tuple[int, float, float, float]]] = {}
    zeros = Counter[str]()
    for number, run in enumerate(runs):
        for name, median, low, high, kind_index in run.times:
            if 0 < median < math.inf:
                times = times_by_series.setdefault((name, run.kinds[kind_index]), [])
                ends = (-math.inf if low is None else low, math.inf if high is None else high)
                times.append((number, median, *ends))
            else:
                zeros[name] += 1
    series = []
    for (name, kind), times in times_by_series.items():
        numbers, medians, low_ends, high_ends = zip(*times, strict=True)
        series.append(
            Series(name, kind.hardware, kind.conditions, numbers, medians, low_ends, high_ends)
        )
    sentences = [
        f"{name!r} has a time of 0 in {count} of the runs, which are left out of its series"
        for name, count in zeros.items()
    ]
    return series, sentences


def _judged(series: Series, runs: Sequence[HistoryRun], false_alarms: float) -> Series:
    logs = [math.log(seconds) for seconds in series.seconds]
    own = [runs[number] for number in series.runs]
    # Uncommitted changes of two runs can differ although their commit is the same.
    changed = (
        run.version != earlier.version or bool(run.dirty or earlier.dirty)
        for earlier, run in itertools.pairwise(own)
    )
    commits = [*itertools.accumulate(changed, initial=0)]
    changes = change_points.find_changes(logs, commits, false_alarms)
    return dataclasses.replace(
        series,
        deviation=change_points.deviation_of(logs),
        changes=tuple(_change_point(change, series.runs, runs) for change in changes),
        judged=len(logs) >= 2 * change_points.FEWEST_RUNS,
    )


def _change_point(
    change: change_points.LevelChange, numbers: Sequence[int], runs: Sequence[HistoryRun]
) -> ChangePoint:
    after, before = (runs[numbers[index]] for index in (change.at, change.at - 1))
    likely = (runs[number].label for number in numbers[change.earliest : change.latest + 1])
    shifts = (change.shift, change.shift - change.error, change.shift + change.error)
    return ChangePoint(
        run=numbers[change.at],
        commit=after.label,
        before=before.label,
        commits=tuple(dict.fromkeys(likely)),
        earliest=numbers[change.earliest],
        latest=numbers[change.latest],
        certainty=change.certainty,
        p_value=change.p_value,
        ratio=Ratio(*map(math.exp, shifts)),
        differs=tuple(
            f"{what} {value} → {after.machine[what]}"
            for what, value in before.machine.items()
            if after.machine.get(what, value) != value
        ),
    )
