"""`convtime show`: print a file of results."""

from __future__ import annotations

import argparse

from convtime.cli import arguments
from convtime.cli.output import add_outputs, deliver
from convtime.storage.load import load


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints a file of results: any that convtime wrote, or of another tool that "
        "convtime.read_measurements reads. --json converts it to convtime's own format."
    )
    parser.add_argument("file", type=arguments.file_name, metavar="FILE", help="the results")
    add_outputs(parser, verbose=True, markdown=True, reads={"FILE": "file"})


def run(options: argparse.Namespace) -> None:
    deliver(options, load(options.file))
