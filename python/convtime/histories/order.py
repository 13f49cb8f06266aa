"""The order of runs: by commit where git knows it, otherwise by date."""

from __future__ import annotations

import os
import re
import subprocess
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from convtime.core.errors import shown, why
from convtime.histories.run import HistoryRun

_GIT_SECONDS = 20.0
# What git says where there is no commit at all.
_NO_COMMITS = ("not a git repository", "bad revision 'HEAD'")
# Differences of clocks that are not worth a sentence: runs on other machines than the commits.
_SAME_CLOCK_SECONDS = 300.0


def commits_of(folder: Path) -> tuple[dict[str, int], str]:
    """Return the commits of the repository around a folder, oldest first, with their times.

    There are none outside of a repository, or if git fails, for the reason that is also returned.
    """
    try:
        log = subprocess.run(
            [
                *("git", "-c", "log.showSignature=false"),  # each would be more lines
                *("log", "--topo-order", "--reverse", "--format=%H %ct", "HEAD", "--"),
            ],
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},  # its messages are read
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_GIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {}, f"git did not list the commits within {_GIT_SECONDS:g} s"
    except OSError as error:
        return {}, f"git cannot be run ({why(error)})"
    if log.returncode:
        said = log.stderr.partition("\n")[0]
        is_empty = any(each in log.stderr for each in _NO_COMMITS)
        return {}, "" if is_empty else f"git cannot list the commits ({said})"
    lines = re.findall(r"^([0-9a-f]+) (\d+)$", log.stdout, re.MULTILINE)
    return {commit: int(seconds) for commit, seconds in lines}, ""


def in_order(
    runs: Sequence[HistoryRun], commits: Mapping[str, int]
) -> tuple[list[HistoryRun], list[str]]:
    """Return the runs in order, and sentences about runs whose place is in doubt.

    Args:
        runs: runs whose dates can be parsed.
        commits: the commits that git knows, oldest first, with their times.
    """
    places = {commit: place for place, commit in enumerate(commits)}
    by_date = sorted(runs, key=lambda run: run.seconds_since_1970)
    known = [run for run in by_date if run.commit in places]
    known.sort(key=lambda run: (places[run.commit], bool(run.dirty)))
    others = [run for run in by_date if run.commit not in places]
    # The latest date so far: an old commit that was measured again later does not attract others.
    dates = list(accumulate((run.seconds_since_1970 for run in known), max))
    slots: dict[int, list[HistoryRun]] = {}
    for run in others:
        slots.setdefault(bisect_right(dates, run.seconds_since_1970), []).append(run)
    ordered: list[HistoryRun] = []
    for place in range(len(known) + 1):
        ordered += [*slots.get(place, ()), *known[place : place + 1]]
    return ordered, [*_unknown(others, bool(commits)), *_skewed(runs, commits)]


def _unknown(others: Sequence[HistoryRun], git_knows_some: bool) -> list[str]:
    strange = [run for run in others if run.commit]
    if not (git_knows_some and strange):
        return []
    return [
        f"{_some(strange)}: git does not know the commit among the ancestors of HEAD, so the date "
        "decides the place"
    ]


def _skewed(runs: Sequence[HistoryRun], commits: Mapping[str, int]) -> list[str]:
    """Describe runs whose clock was wrong: before their commit's time, or in the future."""
    now = time.time() + _SAME_CLOCK_SECONDS
    future = [run for run in runs if run.seconds_since_1970 > now]
    early = [
        run
        for run in runs
        if run.commit in commits
        and run.seconds_since_1970 < commits[run.commit] - _SAME_CLOCK_SECONDS
    ]
    sentences = []
    if early:
        sentences.append(
            f"{_some(early)}: dated before the commit, so a clock was wrong; the commit decides "
            "the place"
        )
    if future:
        undecided = any(run.commit not in commits for run in future)
        sentences.append(
            f"{_some(future)}: dated in the future, so a clock is wrong"
            + ("; the place may be wrong, too" if undecided else "; the commit decides the place")
        )
    return sentences


def _some(runs: Sequence[HistoryRun]) -> str:
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"{shown(runs[0].file)}{more}"
