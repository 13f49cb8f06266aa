"""The command `convtime`, also `python -m convtime`; each subcommand is a module."""

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
from convtime.core.interrupts import MESSAGE, raise_on_interrupt
from convtime.show.text import printable


class _Parser(argparse.ArgumentParser):
    """Reports an invalid command line in a single line, like every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process) and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without × or µ gets an escape, instead of an error after all the timing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _warnings_in_one_line():
            arguments = sys.argv[1:] if arguments is None else arguments
            parser = make_parser()
            raise_on_interrupt()
            options = parser.parse_args(arguments)
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
    """Print warnings for the user without their source location."""
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
    """Report that Ctrl-C ended the command, and return its exit code."""
    print_error(MESSAGE)
    return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """Build the parser with all commands."""
    # Imported here: the imports are slow.
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
