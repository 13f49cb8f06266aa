"""Scripts that complete the command line in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from convtime.cli import arguments

_FILES = ("STATEMENT|FILE",)  # metavars of arguments that can be files, and have no type


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    for action in _actions(parser):
        if action.type is arguments.file_name or action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    completed: str = shtab.complete(parser, shell=shell)
    return completed


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
