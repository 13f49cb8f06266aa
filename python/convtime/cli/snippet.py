"""Statements that are timed, with their options: those of commands, and of IPython's magics."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from convtime.cli import arguments
from convtime.cli.timing_options import add_timing_options, timing_options
from convtime.core.errors import InputError, one_line
from convtime.core.user_code import import_from_working_directory
from convtime.results.measurement import Measurement
from convtime.timing.candidate import Candidate
from convtime.timing.snippet import function_of, raised_by, run
from convtime.timing.stopwatch import time_op

NAMESPACE_HELP = (
    "Statements and setup find torch, F (torch.nn.functional) and device; new tensors of the setup "
    "are on that device."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds all options of `convtime time` that say what is timed, and how."""
    parser.add_argument("--name", help="what the result is called (default: the statement)")
    add_setup_options(parser)
    parser.add_argument(
        "--flops",
        type=arguments.number,
        metavar="NUMBER",
        help="floating-point operations of a call, to be set against what the device reaches",
    )
    parser.add_argument(
        "--nbytes",
        type=arguments.number,
        metavar="NUMBER",
        help="bytes that a call has to move, likewise",
    )
    add_timing_options(parser, but=("margin",))


def add_setup_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what statements find, and what is done before each call."""
    parser.add_argument(
        "-s",
        "--setup",
        action="append",
        default=[],
        metavar="CODE",
        help="runs once, before the first call; may be given several times, a line each",
    )
    parser.add_argument(
        "--before",
        action="append",
        default=[],
        metavar="CODE",
        help="runs before each call, outside of the timed region and before the cache is flushed; "
        "may be given several times, a line each",
    )
    parser.add_argument(
        "--backward",
        action="store_true",
        help="time the backward pass of the statement's result instead, with random gradients",
    )


def add_named(parser: argparse.ArgumentParser) -> None:
    """Adds --named, for commands that take several statements."""
    parser.add_argument(
        "-n",
        "--named",
        action="append",
        default=[],
        metavar="NAME=STATEMENT",
        help="a statement with a name; may be given several times, after those without",
    )


def named_statements(options: argparse.Namespace) -> dict[str, str]:
    """The statements of a command line by name, with those by :func:`add_named`.

    Raises:
        InputError: for none, and for two of one name.
    """
    pairs = [(statement, statement) for statement in options.statements]
    for named in options.named:
        name, equals, statement = named.partition("=")
        if not (name.strip() and equals):
            raise InputError(f"--named must be NAME=STATEMENT, got {named!r}")
        pairs.append((name.strip(), statement))
    if not pairs:
        raise InputError("there is nothing to time; give statements, or --named NAME=STATEMENT")
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name!r} is there more than once; give each a name with --named")
    return dict(pairs)


def statement_of(lines: Sequence[str]) -> str:
    """The statement of a command line, which - takes from standard input.

    Raises:
        InputError: standard input cannot be read.
    """
    if list(lines) != ["-"]:
        return "\n".join(lines)
    if sys.stdin is None:
        raise InputError("the statement is to come from standard input, which is closed")
    try:
        return sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"standard input cannot be read ({error})") from error


def fresh_namespace(device: torch.device) -> dict[str, Any]:
    """What statements of a command line find; they may also import from the working directory."""
    import_from_working_directory()
    return {"__name__": "__main__", "torch": torch, "F": F, "device": device}


def set_up(
    options: argparse.Namespace, namespace: dict[str, Any], device: torch.device | None = None
) -> None:
    """Checks the timing options, and runs the setup.

    Args:
        options: what a command line gives, by :func:`add_options`.
        namespace: the variables that the setup finds, and where it leaves its own.
        device: where it makes new tensors, unless it says so itself; PyTorch's default device
            unless given.

    Raises:
        InputError: for an option outside of its range, and a setup that is not Python. Whatever
            the setup raises passes through.
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
) -> Candidate:
    """A statement as what :func:`convtime.compare` takes.

    Args:
        statement: its code.
        options: what a command line gives, by :func:`add_setup_options` at least.
        namespace: as :func:`set_up` left it.
        name: of the candidate; the statement unless given.
        what: what errors call the statement.

    Raises:
        InputError: for a statement that is not Python, or empty.
    """
    before = "\n".join(options.before)
    return Candidate(
        function_of(statement, namespace, what=what),
        name=name,
        setup=function_of(before, namespace, what="--before") if before else None,
        backward=options.backward,
    )


def time_statement(
    statement: str, options: argparse.Namespace, namespace: dict[str, Any]
) -> Measurement:
    """Times a statement, by the options of :func:`add_options`.

    Raises:
        InputError: as :func:`candidate_of`. What the statement, and :func:`convtime.time_op`, raise
            passes through.
    """
    candidate = candidate_of(statement, options, namespace, name=options.name)
    return time_op(
        candidate.fn,
        name=candidate.name,
        setup=candidate.setup,
        backward=candidate.backward,
        flops=options.flops,
        nbytes=options.nbytes,
        **timing_options(options),
    )


def with_device(text: str, options: argparse.Namespace, device: torch.device) -> str:
    """A result as text, with the GPU that the setup's tensors are on where nobody named it."""
    if not options.setup or options.device is not None or device.type == "cpu":
        return text
    return f"{text}\n\nno --device was given: the setup's new tensors are on {device}"


@contextlib.contextmanager
def told_in_one_sentence() -> Iterator[None]:
    """Makes an InputError of what statements raise, and of what `time_op` and `compare` refuse."""
    try:
        yield
    except (Exception, SystemExit) as error:
        sentence = raised_by(error)
        if not sentence and isinstance(error, (ValueError, RuntimeError, OSError)):
            sentence = one_line(error)
        if not sentence:
            raise
        raise InputError(sentence) from error
