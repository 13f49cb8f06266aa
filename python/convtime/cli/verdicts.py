"""Handle verdicts in commands: options, an exit code, and a line with the reason."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from convtime.cli.exit_codes import DONE, FOUND
from convtime.timing.verdict import Finding, exit_code_of
from convtime.view.wording import printable


def add_verdict_options(
    parser: argparse.ArgumentParser, names: Sequence[str], meaning: str
) -> None:
    """Add --fail-on and --uncertain.

    Args:
        parser: the parser to add them to.
        names: values that --fail-on accepts.
        meaning: when each is found, as part of a sentence.
    """

    def failures(text: str) -> list[str]:
        findings = [each.strip() for each in text.split(",")]
        for each in findings:
            if each not in names:
                raise argparse.ArgumentTypeError(
                    f"got {each!r}, but it must be one of {', '.join(names)}, separated by commas"
                )
        return findings

    parser.add_argument(
        "--fail-on",
        action="extend",
        type=failures,
        default=[],
        metavar="WHAT[,WHAT...]",
        help=f"exit with {FOUND} if one is found, from {','.join(names)}: "
        f"{meaning.replace('%', '%%')}",
    )
    parser.add_argument(
        "--uncertain",
        type=_exit_code,
        default=DONE,
        metavar="CODE",
        help="exit with this if nothing of --fail-on is found but a verdict is uncertain "
        f"(default: {DONE})",
    )


def judge(findings: Sequence[Finding], options: argparse.Namespace) -> tuple[int, str]:
    """Return the exit code, and a line with the reason; the line is empty for 0."""
    code, causes = exit_code_of(findings, options.fail_on, options.uncertain)
    reasons = ", ".join(f"{printable(title)} ({what})" for title, what in causes)
    return code, f"exits with {code}: {reasons}" if code else ""


def _exit_code(text: str) -> int:
    if not (text.isdecimal() and len(text) <= 3 and int(text) <= 255):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, but it must be a whole number from 0 to 255"
        )
    return int(text)
