"""`convtime completion`: a script that completes the command line in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from convtime.cli import arguments
from convtime.cli.output import print_result

SHELLS = ("bash", "zsh")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.description = (
        "Prints a script that completes convtime's commands and options in a shell; "
        "docs/guides/command-line.md explains the installation."
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from convtime.cli import make_parser

    parser = make_parser()
    for action in _actions(parser):
        if action.type is arguments.file_name:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print_result(shtab.complete(parser, shell=options.shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
