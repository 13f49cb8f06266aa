"""`convtime compare-files`: the changes from one file of results to another."""

from __future__ import annotations

import argparse
from typing import get_args

from convtime.cli import arguments
from convtime.cli.exit_codes import DONE
from convtime.cli.output import add_outputs, check_outputs, deliver_result
from convtime.cli.verdicts import add_verdict_options, judge
from convtime.core.errors import InputError
from convtime.exchange.files import read_baseline, with_names_in_common
from convtime.regression.changes import FINDS
from convtime.regression.compare_runs import compare_runs
from convtime.regression.differences import SameGpu
from convtime.view.wording import printable


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
        metavar="SHARE",
        help="relative difference from the earlier time that counts as equal (default: each "
        "test's own if BEFORE is a calibrated run of the pytest plugin, and 0.03 for others)",
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
    add_outputs(parser, markdown=True)


def _run(options: argparse.Namespace) -> int:
    check_outputs(options, {"BEFORE": options.before, "AFTER": options.after})
    first, second = options.before, options.after
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
