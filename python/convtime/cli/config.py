"""`convtime config`: versions, devices and timing methods."""

from __future__ import annotations

import argparse
import json

from convtime.cli.output import add_json, check_json, deliver_result
from convtime.core.config import show_config


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.set_defaults(run=_run)
    add_json(parser)


def _run(options: argparse.Namespace) -> None:
    check_json(options.json)
    text = json.dumps(show_config(), indent=2)
    deliver_result(options, lambda: text, lambda: f"{text}\n")
