"""What commands print and write."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from convtime.cli import arguments
from convtime.core.errors import InputError
from convtime.core.files import check_distinct, check_writable, write_file

STANDARD_OUTPUT = Path("-")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds --json, of every command that has a result."""
    parser.add_argument(
        "--json",
        type=arguments.file_name,
        metavar="FILE",
        help="write the result as JSON, too; - prints it in place of the text",
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Adds --verbose, of commands whose results have more to say than they print."""
    parser.add_argument("-v", "--verbose", action="store_true", help="print all details")


def named_file(path: Path | None) -> Path | None:
    """What an option of an output names, where that is a file."""
    return None if path == STANDARD_OUTPUT else path


def check_json(file: Path | None) -> None:
    """Makes sure, before anything is timed, that what --json names can be written.

    Raises:
        InputError: It cannot.
    """
    named = named_file(file)
    if named is not None:
        check_writable(named)


def check_files(options: argparse.Namespace, other: str) -> None:
    """Makes sure that --json, --csv and --plot can be written, each to a file of its own.

    Args:
        options: With these three.
        other: One more option that names a file, without its dashes.

    Raises:
        InputError: One of them cannot be written, or two of the four are one file.
    """
    from convtime.show import plot

    check_json(options.json)
    for path in (options.csv, options.plot):
        if path:
            check_writable(path)
    names = (other, "json", "csv", "plot")
    check_distinct({f"--{name}": named_file(vars(options)[name]) for name in names})
    if options.plot:
        plot.check_plot(options.plot)


def deliver_result(
    options: argparse.Namespace,
    text: Callable[[], str],
    json: Callable[[], str],
    others: Sequence[Callable[[], None]] = (),
) -> None:
    """Prints a command's result as text, or as JSON, and writes what else is asked for.

    Args:
        options: With --json, by :func:`add_json`.
        text: Gives the result as text.
        json: Gives it as JSON.
        others: Write other files.

    Raises:
        InputError: Says of each output that failed why; the others are made nevertheless.
    """
    if options.json == STANDARD_OUTPUT:
        deliver([*others, lambda: print_result(json().rstrip("\n"))])
        return
    files = [lambda: write_file(options.json, json())] if options.json else []
    deliver([*files, *others, lambda: print_result(text())])


def deliver(outputs: Sequence[Callable[[], None]]) -> None:
    """Makes every output, whichever of those before it failed.

    Raises:
        InputError: Says of each that failed why.
    """
    failures: list[str] = []

    def make(output: Callable[[], None]) -> None:
        try:
            output()
        except InputError as error:
            failures.append(str(error))

    with contextlib.ExitStack() as stack:  # goes on after any other exception too
        for output in reversed(outputs):
            stack.callback(make, output)
    if failures:
        raise InputError("; ".join(failures))


def print_result(text: str) -> None:
    """Prints a command's result.

    Raises:
        InputError: Standard output cannot be written; a reader that went away is no error.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _discard(sys.stdout)
        # A reader that went away, e.g. `head`, has seen enough.
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output cannot be written ({error.strerror})") from error


def print_error(text: str) -> None:
    """Prints a line to standard error; where that cannot be written, nobody can be told."""
    if sys.stderr is None:  # closed, and print would take standard output instead
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Drops what a stream could not write: Python would try again when it exits, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
