"""`convtime config`: versions, devices and timing methods."""

from __future__ import annotations

import argparse
import json
from typing import Any

from convtime.cli.output import print_result
from convtime.core.config import show_config


def add_to(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
    parser = commands.add_parser("config", help="show versions, devices and timing methods")
    parser.set_defaults(run=_run)


def _run(_options: argparse.Namespace) -> None:
    print_result(json.dumps(show_config(), indent=2))
