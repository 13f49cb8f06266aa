"""`convtime compare`: time statements in interleaved order."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from convtime.cli import snippet
from convtime.cli.output import add_json, add_verbose, check_json, deliver_result
from convtime.cli.timing_options import add_timing_options, timing_options
from convtime.cli.verdicts import Finding, add_verdict_options, judge
from convtime.core.errors import InputError
from convtime.device.resolve import resolve_device
from convtime.timing.agreement import Check
from convtime.timing.compare import compare
from convtime.timing.comparison import Comparison
from convtime.timing.confirming import ratios_in, run_fresh
from convtime.timing.verdict import Failure, Ratio

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
    parser.add_argument(
        "statements",
        nargs="*",
        metavar="STATEMENT",
        help="statements to compare; each is named by its own text",
    )
    snippet.add_named(parser)
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
        get_args(Failure),
        "one is slower or faster than the baseline by more than the margin, this is uncertain, its "
        "result is different, or busy time and span contradict each other",
    )
    add_timing_options(parser, defaults={"stop": "verdict; interval for a single statement"})
    add_verbose(parser)
    add_json(parser)


def _run(options: argparse.Namespace) -> int:
    check_json(options.json)
    statements = snippet.named_statements(options)
    if options.baseline is not None and options.baseline not in statements:
        raise InputError(
            f"--baseline must be one of {', '.join(map(repr, statements))}, got "
            f"{options.baseline!r}"
        )
    device = resolve_device(options.device)
    namespace = snippet.fresh_namespace(device)
    with snippet.told_in_one_sentence():
        snippet.set_up(options, namespace, device)
        compared = compare(
            {
                name: snippet.candidate_of(
                    statement, options, namespace, name=name, what=f"statement {name!r}"
                )
                for name, statement in statements.items()
            },
            baseline=options.baseline,
            check=None if options.check == "none" else options.check,
            control=options.control,
            interference=options.interference,
            **timing_options(options),
        )
    if options.confirm and compared.others:
        compared = dataclasses.replace(compared, confirmation=_confirmation(options))
    code, why = judge(list(_found(compared)), options)
    text = compared.details() if options.verbose else str(compared)
    text = snippet.with_device(text, options, device)
    deliver_result(
        options,
        lambda: "\n\n".join(filter(None, (text, why))),
        compared.to_json,
    )
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


def _found(compared: Comparison) -> Iterator[Finding]:
    """Yield the findings for all except the baseline; one candidate can have two."""
    for name in compared.others:
        judged = compared.judge(name)
        yield name, judged.verdict
        if judged.contradiction:
            yield name, "contradictory"
        agreement = compared.same_results.get(name)
        if agreement is not None and agreement.same is False:
            yield name, "different"
