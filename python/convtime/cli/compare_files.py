"""`convtime compare BEFORE AFTER`: the changes from one file of results to another."""

from __future__ import annotations

import argparse
import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from convtime.cli import arguments
from convtime.cli.exit_codes import DONE
from convtime.cli.output import check_outputs, deliver_result
from convtime.cli.verdicts import judge
from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.exchange.files import read_baseline, with_names_in_common
from convtime.regression.compare_runs import compare_runs
from convtime.regression.differences import SameGpu
from convtime.view.wording import printable

#: The options of this module, which only files take.
OWN_OPTIONS = ("false_discoveries", "same_gpu", "relative")
_BEGINNING = 100  # bytes: more than a byte order mark and some white space


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "files of results",
        "--margin is relative to the earlier time; its default is each test's own if BEFORE is a "
        "calibrated run of the pytest plugin, and 0.03 for others.",
    )
    group.add_argument(
        "--false-discoveries",
        type=arguments.number,
        default=0.05,
        metavar="SHARE",
        help="expected false-discovery rate: share of wrong findings among all that are found to "
        "be slower or faster (default: 0.05)",
    )
    group.add_argument(
        "--same-gpu",
        choices=get_args(SameGpu),
        default="model",
        help="which GPU counts as the same: any of the same model (the default), or only the same "
        "device; times on others are uncertain",
    )
    group.add_argument(
        "--relative",
        action="store_true",
        help="judge candidates by their ratio to their baseline, as the pytest plugin saves it",
    )


def files_of(given: Sequence[str]) -> tuple[Path, Path] | None:
    """Return the two files that are given instead of statements; None if they are statements.

    Raises:
        InputError: some are files of results, but not all, or not two.
    """
    files = [text for text in given if _is_result_file(Path(text))]
    if not files:
        return None
    require(
        len(given) == len(files) == 2,
        "compare takes either statements or two files of results; of its arguments, these are "
        f"files of results: {', '.join(files)}",
    )
    return Path(files[0]), Path(files[1])


def _is_result_file(path: Path) -> bool:
    """Return whether a file exists and begins like one that :func:`read_baseline` reads."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            content = file.read(_BEGINNING).removeprefix(codecs.BOM_UTF8).lstrip()
    except (OSError, ValueError):  # the latter for a NUL in a statement
        return False
    return path.suffix.lower() == ".csv" or content.startswith((b"{", b"["))


def run(options: argparse.Namespace, first: Path, second: Path) -> int:
    """Compare two files, print the changes, and return the exit code.

    Raises:
        InputError: a file cannot be read, or an option does not fit.
    """
    check_outputs(options, {"BEFORE": first, "AFTER": second})
    before, after = with_names_in_common(
        read_baseline(first), read_baseline(second), str(first), str(second)
    )
    try:
        changes = compare_runs(
            before,
            after,
            margin=options.margin,
            false_discoveries=options.false_discoveries,
            same_gpu=options.same_gpu,
            relative=options.relative,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    code, why = judge(changes.findings, options)
    is_requested = "more-instructions" in options.fail_on
    unjudged = changes.unjudged_instructions if is_requested else ()
    deliver_result(
        options,
        changes.details,
        changes.to_json,
        *map(printable, unjudged),
        why,
        markdown=changes.to_markdown,
    )
    return code or (options.uncertain if unjudged else DONE)
