"""`convtime compare`: time statements in interleaved order."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from convtime.cli import snippet
from convtime.cli.output import add_outputs, check_outputs
from convtime.cli.timing_options import add_timing_options, timing_options
from convtime.cli.verdicts import add_verdict_options, judge
from convtime.core.errors import InputError
from convtime.timing.agreement import Check
from convtime.timing.compare import compare
from convtime.timing.comparison import FINDS
from convtime.timing.confirming import ratios_in, run_fresh
from convtime.timing.verdict import Ratio

_CONFIRM = "--confirm"


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.description = (
        "Times statements, interleaved, and compares their times and results, with "
        f"convtime.compare. {snippet.NAMESPACE_HELP} They share one setup. For example: convtime "
        "compare -n relu='torch.relu(x)' -n clamp='torch.clamp(x, 0)' --setup "
        "'x = torch.randn(1 << 20)' --fail-on slower,different"
    )
    parser.set_defaults(run=_run)
    snippet.add_statements(parser, "to compare")
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="the statement to compare the others with (default: the first)",
    )
    snippet.add_setup_options(parser)
    parser.add_argument(
        "--check",
        choices=(*get_args(Check), "none"),
        default="close",
        help="compare results with the baseline's: close (within a tolerance for each dtype, the "
        "default), exact (to the bit), or none",
    )
    parser.add_argument(
        "--control",
        action="store_true",
        help="also time a duplicate of the baseline; if it is found to differ, no verdict counts",
    )
    parser.add_argument(
        "--interference",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also time each in isolation, to find those whose time changes when they run with the "
        "others",
    )
    parser.add_argument(
        _CONFIRM,
        action="store_true",
        help="compare again in a fresh process; verdicts that it does not confirm become uncertain",
    )
    add_verdict_options(
        parser,
        FINDS,
        "one is slower or faster than the baseline by more than the margin, this is uncertain, its "
        "result is different, or busy time and span contradict each other",
    )
    add_timing_options(parser, defaults={"stop": "verdict; interval for a single statement"})
    add_outputs(parser, verbose=True)


def _run(options: argparse.Namespace) -> int:
    check_outputs(options)
    statements = snippet.named_statements(options)
    if options.baseline is not None and options.baseline not in statements:
        raise InputError(
            f"--baseline must be one of {', '.join(map(repr, statements))}, got "
            f"{options.baseline!r}"
        )
    with snippet.prepared(options) as (namespace, device):
        compared = compare(
            snippet.candidates_of(statements, options, namespace),
            baseline=options.baseline,
            check=None if options.check == "none" else options.check,
            control=options.control,
            interference=options.interference,
            **timing_options(options),
        )
    if options.confirm and compared.others:
        compared = dataclasses.replace(compared, confirmation=_confirmation(options))
    code, why = judge(compared.findings, options)
    snippet.deliver(options, compared, device, why)
    return code


def _confirmation(options: argparse.Namespace) -> Mapping[str, Ratio]:
    """Run the same command in a fresh process, and return its ratios."""
    same = [argument for argument in options.arguments if argument != _CONFIRM]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "comparison.json")
        command = [sys.executable, "-m", "convtime", *same, "--json", str(file)]
        try:
            run_fresh([*command, "--check", "none", "--no-interference"], options.budget)
            return ratios_in(file)
        except (RuntimeError, OSError) as error:
            raise InputError(f"--confirm: {error}") from error
