"""Axes of statements on the command line, for commands that measure over axes."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

import torch

from convtime.cli import arguments, snippet
from convtime.cli.output import print_error
from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import InputError, first_line, one_line
from convtime.device.resolve import resolve_device
from convtime.sweeps.application import Application
from convtime.sweeps.axes import AXIS_OPTIONS, Axes
from convtime.sweeps.plan import ITERATIONS
from convtime.sweeps.table import PointTable
from convtime.timing.candidate import Candidate
from convtime.timing.snippet import names_in


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file",
        type=arguments.file_name,
        metavar="FILE",
        help="write each point when it is done; if the file exists, continue from it",
    )
    parser.add_argument(
        "--seed", type=arguments.count, metavar="N", help="seed for the order of the points"
    )
    parser.add_argument(
        "--workers",
        type=arguments.workers,
        metavar="N|gpus",
        help="measure points at the same time in processes: one on each GPU (gpus), or N, each "
        "with its own GPU, or with --device cpu with its share of the CPUs",
    )


def axis_texts(given: Sequence[str], option: str) -> dict[str, str]:
    """Return the values of each axis, as given to an option."""
    require(given, f"at least one axis is needed; give {option} NAME=VALUE,VALUE")
    texts: dict[str, str] = {}
    for each in given:
        name, _, values = map(str.strip, each.partition("="))
        require(name and values, f"{option} must be NAME=VALUE,VALUE, got {each!r}")
        require(name not in texts, f"axis {name!r} is given more than once")
        texts[name] = values
    return texts


def option_values(text: str) -> list[Any]:
    """Parse numbers, True and False; everything else is a string."""
    return [_number_or_text(part.strip()) for part in text.split(",")]


def _number_or_text(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def python_values(axis: str, text: str, namespace: Mapping[str, Any]) -> list[Any] | dict[Any, Any]:
    """Parse values of a variable; those other than numbers and strings are named by expression."""
    try:
        parsed = ast.parse(f"[{text}]", mode="eval")
        values = eval(compile(parsed, "axis", "eval"), dict(namespace))  # noqa: S307
    except (Exception, SystemExit) as error:
        raise InputError(
            f"values of axis {axis!r} must be Python, such as 64, torch.float16 or 'text', got "
            f"{text!r} ({first_line(error)})"
        ) from error
    plain = [
        isinstance(value, bool | float | str | None)
        or (isinstance(value, int) and codec.holds(value))
        for value in values
    ]
    assert isinstance(parsed.body, ast.List)
    if all(plain) or len(parsed.body.elts) != len(values):  # the latter for [*range(9)]
        return list(values)
    labels = [
        value if is_plain else ast.unparse(expression)
        for value, is_plain, expression in zip(values, plain, parsed.body.elts, strict=True)
    ]
    labeled = dict(zip(labels, values, strict=True))
    require(len(labeled) == len(labels), f"axis {axis!r} has a value more than once, got {text!r}")
    return labeled


def applications_of(
    statements: Mapping[str, str],
    options: argparse.Namespace,
    axes: Axes,
    namespace: Mapping[str, Any] | None,
) -> dict[str, Application]:
    """Return the statements by name, each with the setup that runs for each point.

    Args:
        statements: code by name.
        options: a parsed command line, with the options of a setup.
        axes: axes that statements and setup can use as variables.
        namespace: further variables, which leave new tensors on PyTorch's default device; None for
            those of a command, whose setup makes new tensors on its device.

    Raises:
        InputError: code is not valid Python, or does not use an axis.
    """
    setup, before = "\n".join(options.setup), "\n".join(options.before)
    shared = names_in(setup, what="the setup") | names_in(before, what="--before")
    parts = {"setup": setup, "before": before, "backward": options.backward}
    surroundings = ", ".join(f"{what} {part!r}" for what, part in parts.items() if part)
    applications = {}
    used = set(shared)
    for name, statement in statements.items():
        used |= names_in(statement, what=f"statement {name!r}")
        snippet.candidate_of(statement, options, {}, what=f"statement {name!r}")
        applications[name] = Application(
            functools.partial(_set_up_candidate, statement, options, namespace),
            f"{statement!r}{surroundings and f' with {surroundings}'}",
        )
    check_used(axes, used, "a variable of statement or setup")
    return applications


def _set_up_candidate(
    statement: str,
    options: argparse.Namespace,
    namespace: Mapping[str, Any] | None,
    /,
    **values: Any,
) -> Candidate:
    device = None
    if namespace is None:  # made here, since it has modules, which cannot be sent to a worker
        device = resolve_device(options.device)
        namespace = snippet.fresh_namespace(device)
    variables = {**namespace, **values}
    snippet.set_up(options, variables, device)
    return snippet.candidate_of(statement, options, variables)


@contextlib.contextmanager
def resume_hint(options: argparse.Namespace) -> Iterator[None]:
    """Say after an interrupt how to resume, if a file was given."""
    try:
        yield
    except BrokenExecutor as error:
        raise InputError(one_line(error)) from error
    except KeyboardInterrupt:
        if options.file is not None:
            print_error(
                f"convtime: the points so far are in {options.file}; the same command continues"
            )
        raise


def check_used(axes: Axes, used: Collection[str], what: str) -> None:
    """Require that statements or problems use each axis that is not an option."""
    for axis in axes.parameters:
        require(
            axis in used,
            f"axis {axis!r} must be {what}, {ITERATIONS}, or one of the options "
            f"{', '.join(AXIS_OPTIONS)}",
        )


def deliver_table(
    options: argparse.Namespace, table: PointTable[Any], device: torch.device, *remarks: str
) -> None:
    """Print and write a table, as :func:`snippet.deliver` does.

    Raises:
        InputError: nothing could be measured at any point.
    """
    if not table.measurements:
        options.plot = None  # there is nothing to draw
    snippet.deliver(options, table, device, *remarks)
    if not table.measurements:
        point = table.failed[0]
        name, error = next(iter(point.failures.items()))
        raise InputError(f"every point failed, e.g. {name} {point.position}: {error}")
