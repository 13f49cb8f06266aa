"""`convtime race`: find the fastest of several statements."""

from __future__ import annotations

import argparse
from typing import get_args

from convtime.cli import snippet
from convtime.cli.output import add_outputs
from convtime.cli.timing_options import add_timing_options, timing_options
from convtime.timing.result_check import Check
from convtime.tuning.race import MOST_MARGIN, OWN_OPTIONS, PATIENCE_SECONDS, race


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Finds the fastest of several statements with convtime.race, in the order that breaks "
        f"ties. {snippet.NAMESPACE_HELP} They share one setup. For example: convtime race -n "
        "relu='torch.relu(x)' -n clamp='torch.clamp(x, 0)' --setup 'x = torch.randn(1 << 20)'"
    )
    snippet.add_statements(parser, "to choose from")
    snippet.add_setup_options(parser)
    parser.add_argument(
        "--check",
        choices=(*get_args(Check), "none"),
        default="close",
        help="drop a statement whose result differs from the first one's: close (beyond a "
        "tolerance for each dtype, the default), exact (in any bit), or none",
    )
    add_timing_options(
        parser,
        but=OWN_OPTIONS,
        defaults={
            "budget": "0.08 per statement",
            "margin": str(MOST_MARGIN),
            "timeout": f"{PATIENCE_SECONDS:g} for the first timing of each statement",
        },
    )
    add_outputs(parser, verbose=True, markdown=True)


def run(options: argparse.Namespace) -> None:
    statements = snippet.named_statements(options)
    with snippet.prepare(options) as (namespace, device):
        raced = race(
            snippet.candidates_of(statements, options, namespace),
            check=None if options.check == "none" else options.check,
            **timing_options(options),
        )
    snippet.deliver(options, raced, device)
