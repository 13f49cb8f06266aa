"""`convtime time`: time a statement, like Python's timeit."""

from __future__ import annotations

import argparse

from convtime.cli import snippet
from convtime.cli.output import add_json, add_verbose, check_json, deliver_result
from convtime.device.resolve import resolve_device


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.description = (
        "Times a statement with convtime.time_op. "
        f"{snippet.NAMESPACE_HELP} "
        "For example: convtime time 'torch.relu(x)' --setup 'x = torch.randn(1 << 20)'"
    )
    parser.set_defaults(run=_run)
    parser.add_argument(
        "statement",
        nargs="+",
        metavar="STATEMENT",
        help="statement to time; several arguments are its lines, and - reads standard input",
    )
    snippet.add_options(parser)
    add_verbose(parser)
    add_json(parser)


def _run(options: argparse.Namespace) -> None:
    check_json(options.json)
    statement = snippet.statement_of(options.statement)
    device = resolve_device(options.device)
    namespace = snippet.fresh_namespace(device)
    with snippet.told_in_one_sentence():
        snippet.set_up(options, namespace, device)
        measured = snippet.time_statement(statement, options, namespace)
    text = measured.details() if options.verbose else str(measured)
    text = snippet.with_device(text, options, device)
    deliver_result(options, lambda: text, measured.to_json)
