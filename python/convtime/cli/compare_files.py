"""`convtime compare-files`: the changes from one file of results to another."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from convtime.cli import arguments
from convtime.cli.exit_codes import DONE
from convtime.cli.output import add_outputs, check_outputs, deliver_result
from convtime.cli.verdicts import add_verdict_options, judge
from convtime.core.errors import InputError, shown
from convtime.core.text import printable
from convtime.exchange.files import read_measurements
from convtime.regression.changes import FINDS
from convtime.regression.compare_runs import compare_runs
from convtime.regression.differences import SameGpu
from convtime.timing.measurement import Measurement


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.description = (
        "Compares measurements with the same names in two files, from any tool that "
        "convtime.read_measurements reads, and lists all other differences between them. Files "
        "with one measurement each are compared whatever its name."
    )
    parser.set_defaults(run=_run)
    for name, which in (("before", "earlier"), ("after", "later")):
        parser.add_argument(
            name, type=arguments.file_name, metavar=name.upper(), help=f"the {which} results"
        )
    parser.add_argument(
        "--margin",
        type=arguments.number,
        default=0.03,
        metavar="SHARE",
        help="relative difference from the earlier time that counts as equal (default: 0.03)",
    )
    parser.add_argument(
        "--false-discoveries",
        type=arguments.number,
        default=0.05,
        metavar="SHARE",
        help="expected false-discovery rate: share of wrong findings among all that are found to "
        "be slower or faster (default: 0.05)",
    )
    parser.add_argument(
        "--same-gpu",
        choices=get_args(SameGpu),
        default="model",
        help="which GPU counts as the same: any of the same model (the default), or only the same "
        "device; times on others are uncertain",
    )
    parser.add_argument(
        "--relative",
        action="store_true",
        help="judge candidates by their ratio to their baseline, as the pytest plugin saves it",
    )
    add_verdict_options(
        parser,
        FINDS,
        "a time is slower or faster by more than the margin, this is uncertain, its name is "
        "missing from the later file or new in it, busy time and span contradict each other, "
        "or a call on the CPU executes over 1 % more instructions",
    )
    parser.add_argument(
        "--markdown",
        type=arguments.file_name,
        metavar="FILE",
        help="write the result for a pull request",
    )
    add_outputs(parser)


def _run(options: argparse.Namespace) -> int:
    check_outputs(options, {"BEFORE": options.before, "AFTER": options.after})
    before, after = _with_names_in_common(options.before, options.after)
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
    asked = "more-instructions" in options.fail_on
    unjudged = changes.unjudged_instructions if asked else ()
    deliver_result(
        options,
        changes.details,
        changes.to_json,
        *map(printable, unjudged),
        why,
        markdown=changes.to_markdown,
    )
    return code or (options.uncertain if unjudged else DONE)


def _with_names_in_common(
    first: Path, second: Path
) -> tuple[Mapping[str, Measurement], Mapping[str, Measurement]]:
    before, after = read_measurements(first), read_measurements(second)
    if len(before) == len(after) == 1 and before.keys() != after.keys():
        (old,), (new,) = before.values(), after.values()
        name = f"{old.name} → {new.name}"
        return (
            {name: dataclasses.replace(old, name=name)},
            {name: dataclasses.replace(new, name=name)},
        )
    if not before.keys() & after.keys():
        raise InputError(
            f"{first} and {second} have no name in common: the first has {_some(before)}, the "
            f"second {_some(after)}"
        )
    return before, after


def _some(names: Mapping[str, object]) -> str:
    some = ", ".join(map(shown, list(names)[:3])) or "none"
    return f"{some} and {len(names) - 3} more" if len(names) > 3 else some
