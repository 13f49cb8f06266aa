"""`convtime history`: the change points in a history of runs."""

from __future__ import annotations

import argparse
import dataclasses
from fnmatch import fnmatchcase

from convtime.cli import arguments
from convtime.cli.output import add_outputs, deliver
from convtime.core.checks import require
from convtime.core.errors import shown
from convtime.histories.history import history


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows since which commit which tests are slower or faster, how sure that is, and how many "
        "false alarms to expect. FOLDER has the runs that pytest --convtime-history FOLDER added, "
        "and may have files of pytest-benchmark. -v also lists series and runs."
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
        "--false-alarms",
        type=arguments.number,
        default=0.0005,
        metavar="RATE",
        help="expected number of false change points per series without a change (default: 0.0005)",
    )
    add_outputs(parser, verbose=True, plot="the times")


def run(options: argparse.Namespace) -> None:
    result = history(options.folder, false_alarms=options.false_alarms)
    if options.test:
        series = tuple(
            one
            for one in result.series
            if any(fnmatchcase(one.name, pattern) for pattern in options.test)
        )
        patterns = ", ".join(map(shown, options.test))
        require(series, f"--test must match a test in the history, got {patterns}")
        result = dataclasses.replace(result, series=series)
    deliver(options, result)
