"""The options of `time_op` on a command line, made from the one list of them."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection
from typing import Any, Literal, get_args, get_origin, get_type_hints

from convtime.cli import arguments
from convtime.cli.output import print_error
from convtime.core.errors import InputError
from convtime.results.batch_record import BatchRecord
from convtime.timing.options import Options

# A stream is the process's own; of `log`, a command line says whether, not what is called.
_NOT_AS_SUCH = ("stream", "log")


def add_timing_options(parser: argparse.ArgumentParser, but: Collection[str] = ()) -> None:
    """Adds an option for each of time_op's, ``--min-samples`` for ``min_samples``.

    Args:
        parser: what they are added to.
        but: names of those that the command does not take.
    """
    group = parser.add_argument_group("how to time")
    hints = get_type_hints(Options)
    texts = get_type_hints(Options, include_extras=True)
    for field in dataclasses.fields(Options):
        if field.name not in (*_NOT_AS_SUCH, *but):
            group.add_argument(
                f"--{field.name.replace('_', '-')}",
                help=_help(texts[field.name].__metadata__[0], field.default),
                **_reading(field.name, hints[field.name]),
            )
    group.add_argument(
        "--log",
        action="store_const",
        const=_log,
        help="print a line for each batch of calls to standard error",
    )


def timing_options(options: argparse.Namespace) -> dict[str, Any]:
    """Those of time_op's options that a command line gives, as its keyword arguments.

    Raises:
        InputError: for an option outside of its range.
    """
    names = (field.name for field in dataclasses.fields(Options))
    found = {name: getattr(options, name, None) for name in names}
    given = {name: value for name, value in found.items() if value is not None}
    try:
        Options(**given)
    except ValueError as error:
        raise InputError(str(error)) from error
    return given


def _reading(name: str, hint: object) -> dict[str, Any]:
    """How an option is read, as keywords of add_argument."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if name == "warmup":
        return {"type": arguments.warmup, "metavar": "steady|CALLS|SECONDS"}
    if name == "device":
        return {"metavar": "DEVICE"}
    if hint in (int, int | None):
        return {"type": arguments.count, "metavar": "N"}
    return {"type": arguments.number, "metavar": "NUMBER"}


def _help(text: str, default: object) -> str:
    plain = text.replace("``", "").replace("%", "%%").rstrip(".")
    return plain if default is None else f"{plain} (default: {default})"


def _log(record: BatchRecord) -> None:
    print_error(str(record))
