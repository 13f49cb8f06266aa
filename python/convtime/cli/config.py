"""`convtime config`: versions, devices and timing methods."""

from __future__ import annotations

import argparse
import json

from convtime.cli.output import add_outputs, check_outputs, deliver_result
from convtime.device.config import show_config


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.set_defaults(run=_run)
    add_outputs(parser)


def _run(options: argparse.Namespace) -> None:
    check_outputs(options)
    text = json.dumps(show_config(), indent=2)
    deliver_result(options, lambda: text, lambda: f"{text}\n")
