"""`convtime show`: print a file of results."""

from __future__ import annotations

import argparse

from convtime.cli import arguments
from convtime.cli.output import add_outputs, check_outputs, deliver_result, text_of
from convtime.storage.load import load
from convtime.view import markdown
from convtime.view.shown import blocks_of


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.description = (
        "Prints a file of results: any that convtime wrote, or of another tool that "
        "convtime.read_measurements reads. --json converts it to convtime's own format."
    )
    parser.set_defaults(run=_run)
    parser.add_argument("file", type=arguments.file_name, metavar="FILE", help="the results")
    add_outputs(parser, verbose=True, markdown=True)


def _run(options: argparse.Namespace) -> None:
    check_outputs(options, {"FILE": options.file})
    result = load(options.file)
    deliver_result(
        options,
        lambda: text_of(result, options),
        result.to_json,
        markdown=lambda: markdown.render(blocks_of(result)),
    )
