"""`convtime time`: time a statement, like Python's timeit."""

from __future__ import annotations

import argparse

from convtime.cli import snippet
from convtime.cli.output import add_outputs


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Times a statement with convtime.time_op. "
        f"{snippet.NAMESPACE_HELP} "
        "For example: convtime time 'torch.relu(x)' --setup 'x = torch.randn(1 << 20)'"
    )
    snippet.add_statement(parser, "time")
    snippet.add_options(parser)
    add_outputs(parser, verbose=True, markdown=True)


def run(options: argparse.Namespace) -> None:
    statement = snippet.statement_of(options.statement)
    with snippet.prepare(options) as (namespace, device):
        measured = snippet.time_statement(statement, options, namespace)
    snippet.deliver(options, measured, device)
