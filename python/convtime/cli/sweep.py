"""`convtime sweep`: time statements, or convolution problems with placeholders, over axes."""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from convtime.cli import arguments, snippet
from convtime.cli.output import add_outputs, check_outputs, print_error
from convtime.cli.timing_options import add_timing_options, timing_options
from convtime.conv.compare import BACKWARD, FORWARD, SIDES, layer_call
from convtime.conv.problem_line import ProblemLine
from convtime.core import codec
from convtime.core.errors import InputError, first_line
from convtime.core.kinds import KINDS
from convtime.device.resolve import resolve_device
from convtime.sweeps import plot
from convtime.sweeps.application import Application
from convtime.sweeps.axes import AXIS_OPTIONS, Axes, read_axes
from convtime.sweeps.plan import ITERATIONS
from convtime.sweeps.sweep import run
from convtime.timing.candidate import Candidate
from convtime.timing.snippet import names_in

_EXAMPLE = "conv2d:n{n}c64h56w56k{k}r3s3p1:{dtype}"
_PROBLEMS = tuple(f"{kind.function}:" for kind in KINDS)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.description = (
        "Times statements, or PyTorch's and convtime's layer of a convolution, at each "
        "combination of the values of some axes, with convtime.sweep. "
        f"{snippet.NAMESPACE_HELP} The axes' values are also variables. For example: "
        "convtime sweep 'torch.relu(x)' --setup 'x = torch.randn(n, n)' --axis n=64,256,1024; or: "
        f"convtime sweep '{_EXAMPLE}' --axis n=1,8,64 --axis k=64,128 --axis dtype=float32,float16"
    )
    parser.set_defaults(run=_run)
    parser.add_argument(
        "statements",
        nargs="*",
        metavar="STATEMENT|PROBLEM",
        help="statements to time, each named by its own text; or convolutions in one line, as for "
        "convtime conv, with the names of axes in braces",
    )
    snippet.add_named(parser)
    parser.add_argument(
        "-a",
        "--axis",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="an axis and its values; can be repeated. It is a variable of statements (with Python "
        "values), a name in braces in a problem, a timing option such as method, or "
        f"{ITERATIONS} (numbers of consecutive calls)",
    )
    parser.add_argument(
        "--side",
        choices=(*SIDES, "both"),
        help="for problems: the side whose layer is timed (default: both)",
    )
    parser.add_argument(
        "--file",
        type=arguments.file_name,
        metavar="FILE",
        help="write each point when it is done; if the file exists, continue from it",
    )
    parser.add_argument(
        "--counters",
        default="",
        metavar="METRIC,...",
        help="also read these hardware counters, or groups of counters",
    )
    parser.add_argument(
        "--rest",
        type=arguments.number,
        metavar="SECONDS",
        help=f"idle time before each point (default: 0.3 with an axis {ITERATIONS}, else 0)",
    )
    parser.add_argument(
        "--seed", type=arguments.count, metavar="N", help="seed for the order of the points"
    )
    snippet.add_setup_options(parser)
    add_timing_options(parser, but=("margin",))
    add_outputs(parser, verbose=True, table=True)


def _run(options: argparse.Namespace) -> None:
    check_outputs(options, {"--file": options.file})
    device = resolve_device(options.device)
    are_problems = _are_problems(options)

    def values(axis: str, text: str) -> object:
        if axis in (*AXIS_OPTIONS, ITERATIONS):
            return _of_option(text)
        return _of_problem(text) if are_problems else _of_python(axis, text, device)

    axes = read_axes(
        {axis: values(axis, text) for axis, text in _texts(options.axis).items()},
        timing_options(options),
    )
    applications = (_layers if are_problems else _statements)(options, axes, device)
    try:
        swept = run(
            applications,
            axes,
            file=options.file,
            counters=options.counters,
            rest=options.rest,
            seed=options.seed,
        )
    except KeyboardInterrupt:
        if options.file is not None:
            print_error(
                f"convtime: the points so far are in {options.file}; the same command continues"
            )
        raise
    files: dict[str, Callable[[], str | bytes]] = {"csv": swept.to_csv}
    if swept.measurements:
        files["plot"] = lambda: plot.draw_sweep(swept, options.plot.suffix)
    snippet.deliver(options, swept, device, **files)
    if not swept.measurements:
        first = swept.failed[0]
        raise InputError(f"every point failed, e.g. {first.name}: {first.error}")


def _texts(given: Sequence[str]) -> dict[str, str]:
    """Return the values of each axis, as given."""
    if not given:
        raise InputError("at least one axis is needed; give --axis NAME=VALUE,VALUE")
    texts: dict[str, str] = {}
    for each in given:
        name, equals, values = each.partition("=")
        if not (name.strip() and equals and values.strip()):
            raise InputError(f"--axis must be NAME=VALUE,VALUE, got {each!r}")
        if name.strip() in texts:
            raise InputError(f"axis {name.strip()!r} is given more than once")
        texts[name.strip()] = values
    return texts


def _of_option(text: str) -> list[Any]:
    """Parse numbers, True and False; everything else is a string."""
    return [_number_or_text(part.strip()) for part in text.split(",")]


def _number_or_text(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _of_problem(text: str) -> list[Any]:
    """Parse whole numbers; everything else is a string, such as 1x0."""
    parts = map(str.strip, text.split(","))
    # Longer numbers are left to the problem, which refuses them.
    return [int(part) if part.isdecimal() and len(part) <= 10 else part for part in parts]


def _of_python(axis: str, text: str, device: torch.device) -> list[Any] | dict[Any, Any]:
    """Parse values of a variable; those other than numbers and strings are named by expression."""
    try:
        parsed = ast.parse(f"[{text}]", mode="eval")
        values = eval(compile(parsed, "axis", "eval"), snippet.fresh_namespace(device))  # noqa: S307
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
    if len(set(labels)) < len(labels):
        raise InputError(f"axis {axis!r} has a value more than once, got {text!r}")
    return dict(zip(labels, values, strict=True))


def _are_problems(options: argparse.Namespace) -> bool:
    """Whether convolution problems are given, instead of statements."""
    found = {statement.startswith(_PROBLEMS) for statement in options.statements}
    if True in found and (False in found or options.named):
        raise InputError("statements and problems cannot be timed in one sweep; give either")
    if True not in found and options.side is not None:
        raise InputError("--side requires problems, got statements")
    return True in found


def _statements(
    options: argparse.Namespace, axes: Axes, device: torch.device
) -> dict[str, Application]:
    """Return the statements by name, each with the setup that runs for each point."""
    statements = snippet.named_statements(options)
    setup, before = "\n".join(options.setup), "\n".join(options.before)
    shared = names_in(setup, what="the setup") | names_in(before, what="--before")
    found = {}
    used = set(shared)
    for name, statement in statements.items():
        used |= names_in(statement, what=f"statement {name!r}")
        snippet.candidate_of(statement, options, {}, what=f"statement {name!r}")
        parts = {"setup": setup, "before": before, "backward": options.backward}
        told = ", ".join(f"{what} {part!r}" for what, part in parts.items() if part)
        found[name] = Application(
            functools.partial(_prepared, statement, options, device),
            f"{statement!r}{told and f' with {told}'}",
        )
    _check_used(axes, used, "a variable of statement or setup")
    return found


def _prepared(
    statement: str, options: argparse.Namespace, device: torch.device, /, **values: Any
) -> Candidate:
    namespace = snippet.fresh_namespace(device) | values
    snippet.set_up(options, namespace, device)
    return snippet.candidate_of(statement, options, namespace)


def _check_used(axes: Axes, used: Collection[str], what: str) -> None:
    for axis in axes.parameters:
        if axis not in used:
            raise InputError(
                f"axis {axis!r} must be {what}, {ITERATIONS}, or one of the options "
                f"{', '.join(AXIS_OPTIONS)}"
            )


def _layers(
    options: argparse.Namespace, axes: Axes, device: torch.device
) -> dict[str, Application]:
    """Return the PyTorch and convtime layers of each problem."""
    if options.setup or options.before:
        raise InputError("--setup and --before require statements, got problems")
    lines = options.statements
    _check_used(axes, set().union(*map(_holes, lines)), "a name in braces in a problem")
    for line in lines:
        for hole in _holes(line):
            if hole not in axes.parameters:
                raise InputError(f"problem {line!r} has {{{hole}}}, but there is no such axis")
        _check_problem(line, axes)
    sides = SIDES if options.side in (None, "both") else (options.side,)
    pass_name = BACKWARD if options.backward else FORWARD
    return {
        side if len(lines) == 1 else f"{side} {line}": Application(
            functools.partial(_layer, line, side, device, pass_name),
            f"the {pass_name} pass of {side}'s {line}",
        )
        for line, side in itertools.product(lines, sides)
    }


def _holes(line: str) -> list[str]:
    """Return the names in braces."""
    try:
        fields = list(string.Formatter().parse(line))
    except ValueError as error:
        raise InputError(f"problem {line!r}: {error}; a placeholder is a name in braces") from error
    names = []
    for _, name, form, conversion in fields:
        if name is None:
            continue
        hole = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
        if not hole.isidentifier():
            raise InputError(
                f"problem {line!r} has {{{hole}}}, but a placeholder must be a name in braces"
            )
        names.append(name)
    return names


def _check_problem(line: str, axes: Axes) -> None:
    """Raise an error if no combination of axis values makes the line a convolution."""
    combinations = itertools.product(*(axes.values[axis] for axis in axes.parameters))
    refusals = [
        _refusal(line, dict(zip(axes.parameters, values, strict=True))) for values in combinations
    ]
    if refusals[0] is not None and all(refusals):
        raise refusals[0]


def _refusal(line: str, values: Mapping[str, Any]) -> InputError | None:
    try:
        ProblemLine.parse(line.format(**values))
    except InputError as error:
        return error
    return None


def _layer(
    line: str, side: str, device: torch.device, pass_name: str, /, **values: Any
) -> Callable[[], object]:
    parsed = ProblemLine.parse(line.format(**values))
    return layer_call(
        parsed.problem,
        side,
        device=device,
        dtype=parsed.dtype or "float32",
        layout=parsed.layout or "nchw",
        pass_name=pass_name,
    )
