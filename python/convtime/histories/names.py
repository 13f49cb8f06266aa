"""Tests that were renamed, removed or parametrized: what their history says about them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from convtime.core.errors import InputError, shown
from convtime.histories.run import HistoryRun


def check_renamed(renamed: Mapping[str, str]) -> None:
    """Check that names are not renamed in a circle.

    Raises:
        InputError: they are.
    """
    for name in renamed:
        seen = {name}
        while name in renamed:
            name = renamed[name]
            if name in seen:
                raise InputError(f"renamed must not lead back to a name, got {shown(name)} twice")
            seen.add(name)


def present_name(name: str, renamed: Mapping[str, str]) -> str:
    """Return a test's name after all renamings."""
    while name in renamed:
        name = renamed[name]
    return name


def sentences(
    runs: Sequence[HistoryRun], names: Sequence[Sequence[str]], renamed: Mapping[str, str]
) -> list[str]:
    """Describe names that are missing from the newest run, and unused renamings.

    Args:
        runs: the runs, in order.
        names: the present names of the times in each run.
        renamed: the renamings that were applied.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, present in enumerate(names):
        for name in present:
            first.setdefault(name, number)
            last[name] = number
    gone: dict[int, list[str]] = {}
    for name, number in last.items():
        if number < len(runs) - 1:
            gone.setdefault(number, []).append(name)
    told = [_unused(old) for old in renamed if not _occurs(runs, old)]
    for number, ended in sorted(gone.items()):
        began = [name for name, start in first.items() if start == number + 1]
        told += _about(ended, began, runs[number], runs[number + 1])
    return told


def _occurs(runs: Sequence[HistoryRun], name: str) -> bool:
    return any(row[0] == name for run in runs for row in run.times)


def _unused(old: str) -> str:
    return f"{shown(old)} is to be renamed, but no run has a test of that name"


def _about(ended: list[str], began: list[str], before: HistoryRun, after: HistoryRun) -> list[str]:
    """Describe the tests that ended between two runs, with those that began there."""
    told = []
    removed = []
    for name in ended:
        cases = [new for new in began if _is_case(new, name)]
        if cases:
            told.append(
                f"{shown(name)} was parametrized at {after.label}: {_listed(cases)}; each is a "
                "series that begins there"
            )
            continue
        alike = [new for new in began if new.rpartition("::")[2] == name.rpartition("::")[2]]
        alike = alike or (began if len(ended) == len(began) == 1 else [])
        if len(alike) == 1:
            option = shlex.quote(f"{name}={alike[0]}")
            told.append(
                f"{shown(name)} ends at {before.label}, and {shown(alike[0])} begins at "
                f"{after.label}; if it was renamed, --renamed {option} joins them"
            )
        else:
            removed.append(name)
    if removed:
        told.append(
            f"{_listed(removed)}: last measured at {before.label} ({before.date[:10]}); earlier "
            "times are kept"
        )
    return told


def _is_case(case: str, name: str) -> bool:
    """Return whether a name is another one with parameters, before a label if it has one.

    Those of pytest are in brackets, those of asv in parentheses.
    """
    places = [place for place, character in enumerate(name) if character == " "]
    return any(
        case.startswith(name[:place])
        and case.endswith(name[place:])
        and re.fullmatch(r"\[.*\]|\(.*\)", case[place : len(case) - len(name) + place])
        for place in (*places, len(name))
    )


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(map(shown, names[:3]))
    return f"{some} and {len(names) - 3} more" if len(names) > 3 else some
