"""The command `convtime`, also `python -m convtime`; each subcommand imports its module."""

from __future__ import annotations

import argparse
import functools
import importlib
import io
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from convtime._version import version
from convtime.cli.exit_codes import BAD_INPUT, DONE, INTERRUPTED, MEANINGS
from convtime.cli.output import check_outputs, print_error, print_result
from convtime.core.errors import InputError, InputWarning, one_line
from convtime.core.interrupts import MESSAGE, raise_on_interrupt
from convtime.view.wording import printable

# Here and not in the modules: most of them import torch, which takes seconds.
_COMMANDS = {
    "time": "time a statement, as Python's timeit does",
    "compare": "time several statements, interleaved, and compare them; or compare two files",
    "race": "find the fastest of several statements",
    "diagnose": "explain a statement's time and its variation",
    "conv": "time PyTorch's convolution layers against convtime's",
    "engines": "time every engine that cuDNN has for a convolution",
    "tune": "choose cuDNN's plans for convolutions",
    "sweep": "time statements or convolutions over axes: sizes, dtypes, options, iterations",
    "counters": "read hardware counters of a statement's kernels",
    "show": "print a file of results",
    "report": "write a page of results: one HTML file, with plots",
    "history": "show since which commit which tests are slower or faster",
    "upgrade": "show the changes of a model's layers from one torch or cuDNN to another",
    "doctor": "check whether timings can be trusted on this machine",
}


class _Parser(argparse.ArgumentParser):
    """Reports an invalid command line in a single line, like every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class _Completion(argparse.Action):
    """Prints the script, with which a shell completes the whole command line."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        completion = importlib.import_module("convtime.cli.completion")
        print_result(completion.script(make_parser(), shell))
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process) and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without × or µ gets an escape, instead of an error after all the timing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
            arguments = sys.argv[1:] if arguments is None else arguments
            positional = [argument for argument in arguments if not argument.startswith("-")]
            parser = make_parser(positional[:1])
            raise_on_interrupt()
            options = parser.parse_args(arguments)
            check_outputs(options)
            code: int = options.run(options) or DONE
    except InputError as error:
        print_error(f"convtime: error: {printable(one_line(error))}")
        return BAD_INPUT
    except KeyboardInterrupt:
        print_error(MESSAGE)
        return INTERRUPTED
    return code


def _show_warning(
    show: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    *where: Any,
    **further: Any,
) -> None:
    """Print a warning for the user without its source location."""
    if issubclass(category, InputWarning):
        print_error(f"convtime: warning: {printable(str(message))}")
    else:
        show(message, category, *where, **further)


def make_parser(used: Collection[str] = _COMMANDS) -> argparse.ArgumentParser:
    """Build the parser.

    Args:
        used: commands that are parsed with their options; each imports its module. The others are
            only listed.
    """
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
    parser.add_argument(
        "--completion",
        action=_Completion,
        choices=("bash", "zsh"),
        help="print a script that completes commands, options and files in a shell, and exit",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, allow_abbrev=False, help=text)
        if name in used:
            module = importlib.import_module(f"convtime.cli.{name}")
            module.add_to(command)
            command.set_defaults(run=module.run)
    return parser
