"""The order of runs: by commit where git knows it, otherwise by date."""

from __future__ import annotations

import os
import re
import subprocess
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from convtime.core.errors import shown, why
from convtime.histories.run import HistoryRun
from convtime.view.wording import listed

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
        reason = log.stderr.partition("\n")[0]
        is_empty = any(message in log.stderr for message in _NO_COMMITS)
        return {}, "" if is_empty else f"git cannot list the commits ({reason})"
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
    ranks = {commit: rank for rank, commit in enumerate(commits)}
    by_date = sorted(runs, key=lambda run: run.seconds_since_1970)
    known = [run for run in by_date if run.commit in ranks]
    known.sort(key=lambda run: (ranks[run.commit], bool(run.dirty)))
    others = [run for run in by_date if run.commit not in ranks]
    # The latest date so far: an old commit that was measured again later does not attract others.
    dates = list(accumulate((run.seconds_since_1970 for run in known), max))
    positions = [(bisect_right(dates, run.seconds_since_1970), run) for run in others]
    positions += enumerate(known)  # after the others, which come before the run of their position
    ordered = [run for _, run in sorted(positions, key=lambda pair: pair[0])]
    return ordered, [*_order_remarks(runs, others, commits)]


def _order_remarks(
    runs: Sequence[HistoryRun], others: Sequence[HistoryRun], commits: Mapping[str, int]
) -> Iterator[str]:
    """Describe runs of unknown commits, and those dated before their commit or in the future."""
    unknown = [run for run in others if run.commit]
    if commits and unknown:
        yield (
            f"{_files(unknown)}: git does not know the commit among the ancestors of HEAD, so the "
            "date decides the place"
        )
    now = time.time() + _SAME_CLOCK_SECONDS
    future = [run for run in runs if run.seconds_since_1970 > now]
    early = [
        run
        for run in runs
        if run.commit in commits
        and run.seconds_since_1970 < commits[run.commit] - _SAME_CLOCK_SECONDS
    ]
    if early:
        yield (
            f"{_files(early)}: dated before the commit, so a clock was wrong; the commit decides "
            "the place"
        )
    if future:
        undecided = any(run.commit not in commits for run in future)
        yield (
            f"{_files(future)}: dated in the future, so a clock is wrong"
            + ("; the place may be wrong, too" if undecided else "; the commit decides the place")
        )


def _files(runs: Sequence[HistoryRun]) -> str:
    return listed((shown(run.file) for run in runs), most=1)
