"""`convtime history`: the change points in a history of runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Collection
from fnmatch import fnmatchcase

from convtime.cli import arguments
from convtime.cli.output import add_outputs, check_outputs, deliver_result, text_of
from convtime.core.errors import InputError, shown
from convtime.core.files import check_distinct, check_writable
from convtime.histories.history import history
from convtime.histories.reading import read_runs
from convtime.histories.result import History


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows since which commit which tests are slower or faster, how sure that is, and how many "
        "false alarms to expect. FOLDER has the runs that pytest --convtime-history FOLDER added, "
        "and may have files of pytest-benchmark and results of asv. -v also lists series and runs."
    )
    parser.add_argument("folder", type=arguments.file_name, metavar="FOLDER", help="the history")
    parser.add_argument(
        "--test",
        action="append",
        default=[],
        metavar="PATTERN",
        help="show only tests whose names match, e.g. '*relu*'; can be repeated",
    )
    parser.add_argument(
        "--renamed",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="join the times of a test that was renamed; can be repeated",
    )
    parser.add_argument(
        "--false-alarms",
        type=arguments.number,
        default=0.0005,
        metavar="RATE",
        help="expected number of false change points per series without a change (default: 0.0005)",
    )
    parser.add_argument(
        "--plot",
        type=arguments.file_name,
        metavar="FILE",
        help="plot the times: PNG, SVG, PDF or JSON",
    )
    parser.add_argument(
        "--bencher",
        type=arguments.file_name,
        metavar="FILE",
        help="write the newest run in the Bencher Metric Format (JSON)",
    )
    add_outputs(parser, verbose=True)


def run(options: argparse.Namespace) -> None:
    check_outputs(options)
    if options.bencher is not None:
        files = {f"--{name}": getattr(options, name) for name in ("bencher", "json", "plot")}
        check_distinct(files)
        check_writable(options.bencher)
    found = history(options.folder, renamed=_renamed(options), false_alarms=options.false_alarms)
    if options.test:
        found = _selected(found, options.test)
    deliver_result(
        options,
        lambda: text_of(found, options),
        found.to_json,
        plot=lambda: found.plot().content(options.plot.suffix),
        bencher=lambda: json.dumps(found.to_bencher(), ensure_ascii=False, indent=1) + "\n",
    )


def _renamed(options: argparse.Namespace) -> dict[str, str]:
    renamed: dict[str, str] = {}
    names: set[str] = set()
    if any(entry.count("=") > 1 for entry in options.renamed):
        names = {row[0] for run in read_runs(options.folder)[0] for row in run.times}
    for entry in options.renamed:
        old, new = _parted(entry, names)
        if not (old and new):
            raise InputError(f"--renamed must be OLD=NEW, got {shown(entry)}")
        if renamed.setdefault(old, new) != new:
            raise InputError(f"--renamed must give {shown(old)} one new name, got two")
    return renamed


def _parted(entry: str, names: Collection[str]) -> tuple[str, str]:
    """Part two names at the = whose left side is a test; names can have one in a parameter.

    If none is, they are parted where both names have as many.
    """
    places = [place for place, character in enumerate(entry) if character == "="]
    parts = [(entry[:place], entry[place + 1 :]) for place in places]

    def fit(pair: tuple[str, str]) -> tuple[bool, bool, int]:
        old, new = pair
        return old in names, new in names, -abs(old.count("=") - new.count("="))

    return max(parts, key=fit, default=(entry, ""))


def _selected(found: History, patterns: list[str]) -> History:
    series = tuple(
        each for each in found.series if any(fnmatchcase(each.name, one) for one in patterns)
    )
    if not series:
        raise InputError(
            f"--test must match a test in the history, got {', '.join(map(shown, patterns))}"
        )
    return dataclasses.replace(found, series=series)
