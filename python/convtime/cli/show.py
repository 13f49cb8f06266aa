"""`convtime show`: print a file of results."""

from __future__ import annotations

import argparse

from convtime.cli import arguments
from convtime.cli.output import add_json, add_verbose, check_json, deliver_result, named_file
from convtime.core import codec
from convtime.core.files import check_distinct
from convtime.core.shown import Shown
from convtime.exchange.files import document_of
from convtime.storage.load import load


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.description = (
        "Prints a file of results: any that convtime wrote, or of another tool that "
        "convtime.read_measurements reads. --json converts it to convtime's own format."
    )
    parser.set_defaults(run=_run)
    parser.add_argument("file", type=arguments.file_name, metavar="FILE", help="the results")
    add_verbose(parser)
    add_json(parser)


def _run(options: argparse.Namespace) -> None:
    check_distinct({"FILE": options.file, "--json": named_file(options.json)})
    check_json(options.json)
    found = load(options.file)
    shown = list(found.values()) if isinstance(found, dict) else [found]
    texts = [
        result.details() if options.verbose and isinstance(result, Shown) else str(result)
        for result in shown
    ]
    separator = "\n\n" if options.verbose else "\n"
    deliver_result(
        options, lambda: separator.join(texts), lambda: codec.to_json(document_of(found))
    )
