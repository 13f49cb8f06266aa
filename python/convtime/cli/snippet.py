"""Statements to time and their options, for commands and IPython magics."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from convtime import ops as ops  # statements can use torch.ops.convtime
from convtime.cli import arguments, output
from convtime.cli.timing_options import add_timing_options, timing_options
from convtime.core.checks import require
from convtime.core.codec import Stored
from convtime.core.errors import InputError, one_line
from convtime.core.user_code import import_from_working_directory
from convtime.device.resolve import resolve_device
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.snippet import function_of, raised_by, run
from convtime.timing.time_op import time_op

NAMESPACE_HELP = (
    "Statements and setup can use torch, F (torch.nn.functional) and device; new tensors of the "
    "setup are on that device."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of `convtime time` that define the statement and how to time it."""
    parser.add_argument("--name", help="name of the result (default: the statement)")
    add_setup_options(parser)
    parser.add_argument(
        "--flops",
        type=arguments.number,
        metavar="NUMBER",
        help="floating-point operations of a call, for comparison with the device's peak",
    )
    parser.add_argument(
        "--nbytes",
        type=arguments.number,
        metavar="NUMBER",
        help="bytes that a call must move, for comparison with the device's peak",
    )
    add_timing_options(parser, but=("margin",))


def add_statement(parser: argparse.ArgumentParser, verb: str, nargs: str = "+") -> None:
    """Add the statement, for commands that take only one; see :func:`statement_of`.

    Args:
        parser: the parser to add it to.
        verb: what the command does with it.
        nargs: number of arguments, as for argparse.
    """
    parser.add_argument(
        "statement",
        nargs=nargs,
        metavar="STATEMENT",
        help=f"statement to {verb}; several arguments are its lines, and - reads standard input",
    )


def add_setup_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that define the statements' variables and the code before each call."""
    parser.add_argument(
        "-s",
        "--setup",
        action="append",
        default=[],
        metavar="CODE",
        help="code to run once, before the first call; can be repeated, each adds a line",
    )
    parser.add_argument(
        "--before",
        action="append",
        default=[],
        metavar="CODE",
        help="code to run before each call, outside of the timed region and before the cache is "
        "flushed; can be repeated, each adds a line",
    )
    parser.add_argument(
        "--backward",
        action="store_true",
        help="time the backward pass of the statement's result instead, with random gradients",
    )


def add_named(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--named",
        action="append",
        default=[],
        metavar="NAME=STATEMENT",
        help="a statement with a name; can be repeated; listed after the unnamed ones",
    )


def add_statements(
    parser: argparse.ArgumentParser, purpose: str, metavar: str = "STATEMENT"
) -> None:
    """Add statements without and with names, for what they are given for."""
    parser.add_argument(
        "statements",
        nargs="*",
        metavar=metavar,
        help=f"statements {purpose}; each is named by its own text",
    )
    add_named(parser)


def named_statements(options: argparse.Namespace) -> dict[str, str]:
    """Return the statements of a command line by name, including those from :func:`add_named`.

    Raises:
        InputError: there are none, or two have the same name.
    """
    pairs = [(statement, statement) for statement in options.statements]
    for named in options.named:
        name, equals, statement = named.partition("=")
        require(name.strip() and equals, f"--named must be NAME=STATEMENT, got {named!r}")
        pairs.append((name.strip(), statement))
    require(pairs, "there is nothing to time; give statements, or --named NAME=STATEMENT")
    statements: dict[str, str] = {}
    for name, statement in pairs:
        require(
            name not in statements,
            f"{name!r} is given more than once; give each a name with --named",
        )
        statements[name] = statement
    return statements


def statement_of(lines: Sequence[str]) -> str:
    """Return the statement of a command line; - reads it from standard input.

    Raises:
        InputError: standard input cannot be read.
    """
    if list(lines) != ["-"]:
        return "\n".join(lines)
    require(sys.stdin, "the statement must come from standard input, which is closed")
    try:
        return sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"standard input cannot be read ({error})") from error


def fresh_namespace(device: torch.device) -> dict[str, Any]:
    """Return the variables for statements; the working directory becomes importable."""
    import_from_working_directory()
    return {"__name__": "__main__", "torch": torch, "F": F, "device": device}


def set_up(
    options: argparse.Namespace, namespace: dict[str, Any], device: torch.device | None = None
) -> None:
    """Check the timing options, and run the setup.

    Args:
        options: a parsed command line, with :func:`add_options`.
        namespace: the variables that the setup can use; it stores its own here.
        device: the device for its new tensors unless it specifies one; None: PyTorch's default
            device.

    Raises:
        InputError: an option is out of range, or the setup is not valid Python. Exceptions from
            the setup propagate.
    """
    timing_options(options)
    with contextlib.nullcontext() if device is None else device:
        run("\n".join(options.setup), namespace, what="the setup")


def candidate_of(
    statement: str,
    options: argparse.Namespace,
    namespace: dict[str, Any],
    *,
    name: str | None = None,
    what: str = "the statement",
    **of_call: Any,
) -> Candidate:
    """Convert a statement to a candidate for :func:`convtime.compare`.

    Args:
        statement: its code.
        options: a parsed command line, with at least :func:`add_setup_options`.
        namespace: the variables after :func:`set_up`.
        name: name of the candidate; the statement by default.
        what: how error messages refer to the statement.
        of_call: further keywords of the candidate.

    Raises:
        InputError: the statement is empty or not valid Python.
    """
    before = "\n".join(options.before)
    return Candidate(
        function_of(statement, namespace, what=what),
        name=name,
        before=function_of(before, namespace, what="--before") if before else None,
        backward=options.backward,
        **of_call,
    )


def candidates_of(
    statements: Mapping[str, str], options: argparse.Namespace, namespace: dict[str, Any]
) -> dict[str, Candidate]:
    """Convert the statements of :func:`named_statements` to candidates by name.

    Raises:
        InputError: as :func:`candidate_of`.
    """
    return {
        name: candidate_of(statement, options, namespace, name=name, what=f"statement {name!r}")
        for name, statement in statements.items()
    }


def time_statement(
    statement: str, options: argparse.Namespace, namespace: dict[str, Any]
) -> Measurement:
    """Time a statement, with the options from :func:`add_options`.

    Raises:
        InputError: as :func:`candidate_of`. Exceptions from the statement and from
            :func:`convtime.time_op` propagate.
    """
    of_call = {"name": options.name, "flops": options.flops, "nbytes": options.nbytes}
    candidate = candidate_of(statement, options, namespace, **of_call)
    return time_op(candidate, **timing_options(options))


def deliver(
    options: argparse.Namespace,
    result: Stored,
    device: torch.device,
    *remarks: str,
) -> None:
    """Print and write a result, as :func:`output.deliver` does.

    The text also names the GPU that the setup's tensors are on, if no option named it.
    """
    where = f"no --device was given: the setup's new tensors are on {device}"
    needless = not options.setup or options.device is not None or device.type == "cpu"
    output.deliver(options, result, "" if needless else where, *remarks)


@contextlib.contextmanager
def prepare(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], torch.device]]:
    """Run the setup, and yield the variables for statements and the device.

    Raises:
        InputError: the setup or a statement failed, or the code that times it within the context.
    """
    device = resolve_device(options.device)
    namespace = fresh_namespace(device)
    try:
        set_up(options, namespace, device)
        yield namespace, device
    except (Exception, SystemExit) as error:
        sentence = raised_by(error)
        if not sentence and isinstance(error, (ValueError, RuntimeError, OSError)):
            sentence = one_line(error)
        if not sentence:
            raise
        raise InputError(sentence) from error
