"""What commands make of verdicts: their options for it, an exit code, and a line that says why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from convtime.cli.exit_codes import DONE, FOUND
from convtime.show.text import printable

Finding = tuple[str, str]  # what of, and what it is, such as "slower"


def add_verdict_options(
    parser: argparse.ArgumentParser, names: Sequence[str], meaning: str
) -> None:
    """Adds --fail-on and --uncertain.

    Args:
        parser: what they are added to.
        names: what --fail-on takes.
        meaning: when each of these is found, as part of a sentence.
    """

    def failures(text: str) -> list[str]:
        found = [each.strip() for each in text.split(",")]
        for each in found:
            if each not in names:
                raise argparse.ArgumentTypeError(
                    f"got {each!r}, but it must be some of {', '.join(names)}, with commas between"
                )
        return found

    parser.add_argument(
        "--fail-on",
        action="extend",
        type=failures,
        default=[],
        metavar="WHAT[,WHAT...]",
        help=f"exit with {FOUND} where any of these is found, some of {','.join(names)}: "
        f"{meaning.replace('%', '%%')}",
    )
    parser.add_argument(
        "--uncertain",
        type=_exit_code,
        default=DONE,
        metavar="CODE",
        help="exit with this where nothing of --fail-on is found, and a verdict is uncertain "
        f"(default: {DONE})",
    )


def judge(found: Sequence[Finding], options: argparse.Namespace) -> tuple[int, str]:
    """The exit code, and a line that says what it is of; the line is empty for 0."""
    causes = [each for each in found if each[1] in options.fail_on]
    code = FOUND if causes else DONE
    if not causes:
        causes = [each for each in found if each[1] == "uncertain"]
        code = options.uncertain if causes else DONE
    told = (f"{printable(title)} ({what})" for title, what in causes)
    return code, f"exits with {code}: {', '.join(told)}" if code else ""


def _exit_code(text: str) -> int:
    if not (text.isdecimal() and len(text) <= 3 and int(text) <= 255):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, but it must be a whole number from 0 to 255"
        )
    return int(text)
