"""`convtime config`: versions, devices and timing methods."""

from __future__ import annotations

import argparse
import json
from typing import Any

from convtime.cli.output import add_json, check_json, deliver_result
from convtime.core.config import show_config


def add_to(commands: Any) -> None:
    """Add the command to a parser's subparsers."""
    parser = commands.add_parser(
        "config", allow_abbrev=False, help="show versions, devices and timing methods, as JSON"
    )
    parser.set_defaults(run=_run)
    add_json(parser)


def _run(options: argparse.Namespace) -> None:
    check_json(options.json)
    text = json.dumps(show_config(), indent=2)
    deliver_result(options, lambda: text, lambda: f"{text}\n")
