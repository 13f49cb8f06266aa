"""`convtime show`: print a file of results."""

from __future__ import annotations

import argparse

from convtime.cli import arguments
from convtime.cli.output import add_outputs, check_outputs, deliver_result, text_of
from convtime.core import codec, markdown
from convtime.exchange.files import document_of
from convtime.reporting.section import every_block
from convtime.storage.load import load


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
    found = load(options.file)
    results = found.values() if isinstance(found, dict) else [found]
    separator = "\n\n" if options.verbose else "\n"
    deliver_result(
        options,
        lambda: separator.join(text_of(result, options) for result in results),
        lambda: codec.to_json(document_of(found)),
        markdown=lambda: markdown.render(every_block(found)),
    )
