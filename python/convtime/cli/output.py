"""Print and write the results of commands."""

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
    """Add --json; every command with a result has it."""
    parser.add_argument(
        "--json",
        type=arguments.file_name,
        metavar="FILE",
        help="also write the result as JSON; - prints it instead of the text",
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add --verbose, for commands whose results have more details than they print."""
    parser.add_argument("-v", "--verbose", action="store_true", help="print all details")


def named_file(path: Path | None) -> Path | None:
    """Return the path of an output option, or None for standard output."""
    return None if path == STANDARD_OUTPUT else path


def check_json(file: Path | None) -> None:
    """Check, before anything is timed, that the file of --json can be written.

    Raises:
        InputError: It cannot be written, or convtime would read it as CSV.
    """
    named = named_file(file)
    if named is None:
        return
    if named.suffix.lower() == ".csv":
        raise InputError(
            f"--json must not name a .csv file, which is read as CSV, got {named}; name it "
            f"{named.with_suffix('.json')}"
        )
    check_writable(named)


def check_files(options: argparse.Namespace, other: str) -> None:
    """Check that --json, --csv and --plot can be written, each to a separate file.

    Args:
        options: Options that include these three.
        other: The name, without dashes, of one more option for a file.

    Raises:
        InputError: One of the files cannot be written, or two of the four are the same file.
    """
    from convtime.core import plot

    names = (other, "json", "csv", "plot")
    check_distinct({f"--{name}": named_file(vars(options)[name]) for name in names})
    check_json(options.json)
    for path in (options.csv, options.plot):
        if path:
            check_writable(path)
    if options.plot:
        plot.check_plot(options.plot)


def deliver_result(
    options: argparse.Namespace,
    text: Callable[[], str],
    json: Callable[[], str],
    others: Sequence[Callable[[], None]] = (),
) -> None:
    """Print a command's result as text, or as JSON, and write all other requested outputs.

    Args:
        options: Options that include --json, from :func:`add_json`.
        text: Returns the result as text.
        json: Returns the result as JSON.
        others: Functions that write other files.

    Raises:
        InputError: Some outputs failed, with the reason for each; the others are still written.
    """
    if options.json == STANDARD_OUTPUT:
        deliver([*others, lambda: print_result(json().rstrip("\n"))])
        return
    files = [lambda: write_file(options.json, json())] if options.json else []
    deliver([*files, *others, lambda: print_result(text())])


def deliver(outputs: Sequence[Callable[[], None]]) -> None:
    """Write every output, even if earlier ones failed.

    Raises:
        InputError: Some outputs failed, with the reason for each.
    """
    failures: list[str] = []

    def make(output: Callable[[], None]) -> None:
        try:
            output()
        except InputError as error:
            failures.append(str(error))

    with contextlib.ExitStack() as stack:  # continues after any other exception too
        for output in reversed(outputs):
            stack.callback(make, output)
    if failures:
        raise InputError("; ".join(failures))


def print_result(text: str) -> None:
    """Print a command's result.

    Raises:
        InputError: Standard output cannot be written; a closed pipe is not an error.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _discard(sys.stdout)
        # A reader that closed the pipe, e.g. `head`, needs no more output.
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output cannot be written ({error.strerror})") from error


def print_error(text: str) -> None:
    """Print a line to standard error; ignore it if that cannot be written."""
    if sys.stderr is None:  # closed; print would use standard output instead
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Drop a stream's unwritten output; otherwise Python retries at exit and reports an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
