"""The command `convtime`, also `python -m convtime`: a module for each of its commands."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from convtime._build_info import version
from convtime.cli.exit_codes import BAD_INPUT, DONE, INTERRUPTED, MEANINGS
from convtime.cli.output import print_error
from convtime.core.errors import InputError, InputWarning, one_line
from convtime.show.text import printable


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in the same single line as every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: the process's own) and returns its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that has no × or µ gets an escape, and not an error after all the timing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _warnings_in_one_line():
            arguments = sys.argv[1:] if arguments is None else arguments
            options = make_parser().parse_args(arguments)
            options.arguments = tuple(arguments)
            code: int = options.run(options) or DONE
    except InputError as error:
        print_error(f"convtime: error: {printable(one_line(error))}")
        return BAD_INPUT
    except KeyboardInterrupt:
        return interrupted()
    return code


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Prints warnings that are for the user without the place in the code that they come from."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_ours(
            message: Warning | str, category: type[Warning], *place: Any, **further: Any
        ) -> None:
            if issubclass(category, InputWarning):
                print_error(f"convtime: warning: {printable(str(message))}")
            else:
                show(message, category, *place, **further)

        warnings.showwarning = show_ours
        yield


def interrupted() -> int:
    """Says that Ctrl-C ended the command, and returns its exit code."""
    print_error("convtime: interrupted")
    return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """The command line with all of its commands."""
    # Not above: it takes long enough to be interrupted, which main sees to.
    from convtime.cli import (
        compare,
        compare_files,
        completion,
        config,
        conv,
        counters,
        diagnose,
        doctor,
        show,
        sweep,
        time,
    )

    parser = _Parser(
        prog="convtime",
        description="Times PyTorch operations, and its own.",
        epilog="\n".join(
            ["exit codes:", *(f"  {code:<5} {meaning}" for code, meaning in MEANINGS.items())]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"convtime {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        time,
        compare,
        diagnose,
        conv,
        sweep,
        counters,
        show,
        compare_files,
        doctor,
        config,
        completion,
    ):
        command.add_to(commands)
    return parser
