"""Read a history, and find what changed since when."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from convtime.core.errors import InputError
from convtime.histories import change_points, names
from convtime.histories.order import commits_of, in_order
from convtime.histories.reading import read_runs
from convtime.histories.result import ChangePoint, History, Series
from convtime.histories.run import HistoryRun, Kind, rows_of
from convtime.timing.verdict import Ratio


def history(
    folder: str | os.PathLike[str],
    *,
    renamed: Mapping[str, str] = MappingProxyType({}),
    false_alarms: float = 0.0005,
) -> History:
    """Read a history of runs, and find the change points of each test.

    ``pytest --convtime-history FOLDER`` adds a run. The folder may also contain files of
    pytest-benchmark, asv's results, and other runs that :func:`read_measurements` reads. Runs are
    ordered by commit if git knows the commit among the ancestors of HEAD, in the repository around
    the folder or else around the working directory, and otherwise by date.
    Times of one test are compared only on the same hardware under the same conditions: a change of
    the hardware is never a change point. Files that cannot be read are listed in the result's
    ``remarks``.

    Args:
        folder: the folder; folders in it are read, too.
        renamed: present names of tests by their earlier names, whose times are joined.
        false_alarms: expected number of false change points per series without a change, above 0
            and below 1.

    Raises:
        InputError: the folder has no run, or an argument is out of range.
        MissingPackageError: ruptures is not installed (``pip install 'convtime[history]'``).
    """
    if not (isinstance(false_alarms, float) and 0 < false_alarms < 1):
        raise InputError(f"false_alarms must be a number above 0 and below 1, got {false_alarms!r}")
    names.check_renamed(renamed)
    change_points.import_ruptures()
    found, problems = read_runs(folder)
    commits, failed = _commits(found, Path(folder))
    runs, doubts = in_order(found, commits)
    gathered, present, zeros = _gathered(runs, renamed)
    return History(
        runs=tuple(dataclasses.replace(run, times=()) for run in runs),
        series=tuple(_judged(each, runs, false_alarms) for each in gathered),
        false_alarms=false_alarms,
        remarks=(*problems, *failed, *doubts, *zeros, *names.sentences(runs, present, renamed)),
    )


def _commits(runs: Sequence[HistoryRun], folder: Path) -> tuple[dict[str, int], list[str]]:
    """Return the commits of the repository around the folder or around the working directory.

    They are empty if neither has a commit of any run; a sentence says so if git failed.
    """
    failed = ""
    for place in (folder, Path.cwd()):
        commits, reason = commits_of(place)
        if any(run.commit in commits for run in runs):
            return commits, []
        failed = failed or reason
    matters = failed and any(run.commit for run in runs)
    return {}, [f"{failed}, so the date decides the order"] if matters else []


@dataclasses.dataclass
class _Times:
    """The times of one series while they are gathered."""

    runs: list[int] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    low: list[float] = dataclasses.field(default_factory=list)
    high: list[float] = dataclasses.field(default_factory=list)


def _gathered(
    runs: Sequence[HistoryRun], renamed: Mapping[str, str]
) -> tuple[list[Series], list[list[str]], list[str]]:
    """Return the series, the names in each run, and sentences about times that cannot be judged."""
    gathered: dict[tuple[str, Kind], _Times] = {}
    present: list[list[str]] = []
    zeros: dict[str, int] = {}
    for number, run in enumerate(runs):
        own_names = {row[0] for row in run.times}
        present.append([])
        for original, kind, median, low, high in rows_of(run):
            name = names.present_name(original, renamed)
            if name != original and name in own_names:
                name = original  # this run has both
            present[-1].append(name)
            if not 0 < median < math.inf:
                zeros[name] = zeros.get(name, 0) + 1
                continue
            times = gathered.setdefault((name, kind), _Times())
            times.runs.append(number)
            times.seconds.append(median)
            times.low.append(low)
            times.high.append(high)
    series = [
        Series(
            name,
            kind.hardware,
            kind.conditions,
            runs=tuple(times.runs),
            seconds=tuple(times.seconds),
            low=tuple(times.low),
            high=tuple(times.high),
        )
        for (name, kind), times in gathered.items()
    ]
    sentences = [
        f"{name!r} has a time of 0 in {count} of the runs, which are left out of its series"
        for name, count in zeros.items()
    ]
    return series, present, sentences


def _judged(series: Series, runs: Sequence[HistoryRun], false_alarms: float) -> Series:
    logs = [math.log(seconds) for seconds in series.seconds]
    own = [runs[number] for number in series.runs]
    # Uncommitted changes of two runs can differ although their commit is the same.
    changed = (
        run.version != earlier.version or bool(run.dirty or earlier.dirty)
        for earlier, run in itertools.pairwise(own)
    )
    commits = [0]
    for is_new in changed:
        commits.append(commits[-1] + is_new)
    found = change_points.find_changes(logs, commits, false_alarms)
    return dataclasses.replace(
        series,
        deviation=change_points.deviation_of(logs),
        changes=tuple(_change_point(each, series.runs, runs) for each in found),
        judged=len(logs) >= 2 * change_points.FEWEST_RUNS,
    )


def _change_point(
    found: change_points.Found, places: Sequence[int], runs: Sequence[HistoryRun]
) -> ChangePoint:
    after, before = (runs[places[index]] for index in (found.at, found.at - 1))
    likely = (runs[place].label for place in places[found.earliest : found.latest + 1])
    ends = (found.shift, found.shift - found.error, found.shift + found.error)
    return ChangePoint(
        run=places[found.at],
        commit=after.label,
        before=before.label,
        commits=tuple(dict.fromkeys(likely)),
        earliest=places[found.earliest],
        latest=places[found.latest],
        certainty=found.certainty,
        p_value=found.p_value,
        ratio=Ratio(*map(math.exp, ends)),
        differs=tuple(_differences(before.machine, after.machine)),
    )


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{what} {value} → {after[what]}"
        for what, value in before.items()
        if after.get(what, value) != value
    ]
