"""Print and write the results of commands."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from convtime.cli import arguments
from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.core.files import check_distinct, check_writable, write_file
from convtime.view import markdown
from convtime.view.figure import check_plot
from convtime.view.shown import Shown, blocks_of

STANDARD_OUTPUT = Path("-")
_OUTPUTS = ("json", "csv", "plot", "markdown")
_PRINTABLE = ("json", "csv", "markdown")  # instead of the text, with -


def add_outputs(
    parser: argparse.ArgumentParser,
    *,
    verbose: bool = False,
    table: bool = False,
    markdown: bool = False,
    plot: str = "",
    reads: Mapping[str, str] | None = None,
) -> None:
    """Add --json, which every command with a result has.

    Args:
        parser: the parser to add it to.
        verbose: whether to add --verbose: the result has more details than the command prints.
        table: whether to add --csv and --plot.
        markdown: whether to add --markdown.
        plot: what --plot draws, which ``table`` adds too; empty for the result.
        reads: attributes with files that the command reads, by the names of their options.
    """
    parser.set_defaults(reads=reads or {})
    if verbose:
        parser.add_argument("-v", "--verbose", action="store_true", help="print all details")
    parser.add_argument(
        "--json",
        type=arguments.file_name,
        metavar="FILE",
        help="also write the result as JSON; - prints it instead of the text",
    )
    output = functools.partial(parser.add_argument, type=arguments.file_name, metavar="FILE")
    if markdown:
        output(
            "--markdown",
            help="write the result for a pull request; - prints it instead of the text",
        )
    if table:
        output("--csv", help="write the table; - prints it instead of the text")
    if table or plot:
        output("--plot", help=f"plot {plot or 'the result'}: PNG, SVG, PDF or JSON")


def check_outputs(options: argparse.Namespace) -> None:
    """Check, before a command runs, that each output can be written to a file of its own.

    Args:
        options: a parsed command line.

    Raises:
        InputError: a file cannot be written, is also an input or another output, or would be JSON
            that convtime reads as CSV; or two outputs are to be printed.
    """
    printed = printed_outputs(options)
    files = {f"--{name}": getattr(options, name, None) for name in _OUTPUTS if name not in printed}
    names = " and ".join(f"--{name}" for name in printed)
    require(len(printed) < 2, f"{names} must not all be -, since only one of them can be printed")
    check_distinct(files)
    for option, attribute in getattr(options, "reads", {}).items():
        check_distinct({option: getattr(options, attribute), **files})
    json = files.get("--json")
    if json and json.suffix.lower() == ".csv":
        raise InputError(
            f"--json must not name a .csv file, which is read as CSV, got {json}; name it "
            f"{json.with_suffix('.json')}"
        )
    for path in filter(None, files.values()):
        check_writable(path)
    if files["--plot"]:
        check_plot(files["--plot"])


def printed_outputs(options: argparse.Namespace) -> list[str]:
    """Return the name of the output that is printed instead of the text, if there is one."""
    return [name for name in _PRINTABLE if getattr(options, name, None) == STANDARD_OUTPUT]


def tell(text: str) -> None:
    """Print a line about progress to standard error, if that is a terminal."""
    if sys.stderr and sys.stderr.isatty():
        print(f"convtime: {text}", file=sys.stderr)


def deliver(
    options: argparse.Namespace,
    result: Any,
    *remarks: str,
    **files: Callable[[], str | bytes],
) -> None:
    """Print and write a stored result in all its forms, as :func:`deliver_result` does."""

    def text() -> str:
        with_details = getattr(options, "verbose", False) and isinstance(result, Shown)
        return result.details() if with_details else str(result)

    forms: dict[str, Callable[[], str | bytes]] = {
        "csv": lambda: result.to_csv(),
        "markdown": lambda: markdown.render(blocks_of(result)),
        "plot": lambda: result.plot().content(options.plot.suffix),
    }
    deliver_result(options, text, result.to_json, *remarks, **forms | files)


def deliver_result(
    options: argparse.Namespace,
    text: Callable[[], str],
    json: Callable[[], str],
    *remarks: str,
    **files: Callable[[], str | bytes],
) -> None:
    """Print a command's result as text, or as JSON, and write all other requested outputs.

    Args:
        options: a parsed command line, with :func:`add_outputs`.
        text: returns the result as text.
        json: returns the result as JSON.
        remarks: paragraphs after the text; empty ones are left out.
        files: by the names of options that can name a file, functions that return its content.

    Raises:
        InputError: Some outputs failed, with the reason for each; the others are still written.
    """

    def text_with_remarks() -> str:
        return "\n\n".join(filter(None, (text(), *remarks)))

    failures: list[str] = []

    def write(content: Callable[[], str | bytes], path: Path | None) -> None:
        try:
            if path is None:
                print_result(str(content()).rstrip("\n"))
            else:
                write_file(path, content())
        except InputError as error:
            failures.append(str(error))

    contents = {"json": json, **files}
    printed = printed_outputs(options)
    with contextlib.ExitStack() as stack:  # continues after any other exception too
        stack.callback(write, contents[printed[0]] if printed else text_with_remarks, None)
        for name, content in reversed(contents.items()):
            path = getattr(options, name, None)
            if path and name not in printed:
                stack.callback(write, content, path)
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


def print_error(text: object) -> None:
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
