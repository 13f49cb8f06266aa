"""Command-line options for the options of `time_op`, generated from their common list."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from convtime.cli import arguments
from convtime.cli.output import print_error
from convtime.core.errors import InputError
from convtime.timing.options import Options

# A stream belongs to this process; `log` is only a switch on a command line, not a function.
_NOT_AS_SUCH = ("stream", "log")
_UNITS = {"budget": "SECONDS", "timeout": "SECONDS", "tolerance": "SHARE", "margin": "SHARE"}
_FIELDS = {field.name: field for field in dataclasses.fields(Options)}


def add_timing_options(
    parser: argparse.ArgumentParser,
    but: Collection[str] = (),
    defaults: Mapping[str, str] | None = None,
) -> None:
    """Add an option for each option of time_op, e.g. ``--min-samples`` for ``min_samples``.

    Args:
        parser: the parser to add them to.
        but: names of options that the command does not take.
        defaults: descriptions of defaults that differ from time_op's.
    """
    group = parser.add_argument_group("how to time")
    defaults = defaults or {}
    hints = get_type_hints(Options)
    texts = get_type_hints(Options, include_extras=True)
    for name, field in _FIELDS.items():
        if name not in (*_NOT_AS_SUCH, *but):
            group.add_argument(
                f"--{name.replace('_', '-')}",
                help=_help(texts[name].__metadata__[0], defaults.get(name, field.default)),
                **_reading(name, hints[name]),
            )
    group.add_argument(
        "--log",
        action="store_const",
        const=print_error,
        help="print a line for each batch of calls to standard error",
    )


def timing_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the time_op options that the command line sets, as keyword arguments.

    Raises:
        InputError: an option is out of range.
    """
    values = {name: getattr(options, name, None) for name in _FIELDS}
    given = {name: value for name, value in values.items() if value is not None}
    try:
        Options(**given)
    except ValueError as error:
        raise InputError(str(error)) from error
    return given


def _reading(name: str, hint: object) -> dict[str, Any]:
    """Return the add_argument keywords that parse an option."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if name == "warmup":
        return {"type": arguments.warmup, "metavar": "steady|CALLS|SECONDS"}
    if name == "device":
        return {"metavar": "DEVICE"}
    kind = arguments.count if hint in (int, int | None) else arguments.number
    return {"type": kind, "metavar": _UNITS.get(name, "N")}


def _help(text: str, default: object) -> str:
    """Return the description of an option, without docstring markup."""
    plain = re.sub(r":\w+:`(.+?)`", r"\1", text).replace("``", "")
    plain = plain.rstrip(".").replace("%", "%%")
    return plain if default is None or default is True else f"{plain} (default: {default})"
