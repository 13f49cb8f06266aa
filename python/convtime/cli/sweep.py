"""`convtime sweep`: time statements, or convolution problems with placeholders, over axes."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import torch

from convtime.cli import arguments, snippet
from convtime.cli.axes import (
    add_run_options,
    applications_of,
    axis_texts,
    check_used,
    deliver_table,
    option_values,
    python_values,
    resume_hint,
)
from convtime.cli.output import add_outputs
from convtime.cli.timing_options import add_timing_options, timing_options
from convtime.conv.problem import BACKWARD, FORWARD
from convtime.conv.problem_line import ProblemLine
from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.core.kinds import KINDS
from convtime.device.resolve import resolve_device
from convtime.layers.compare import SIDES, layer_call
from convtime.sweeps import sweep
from convtime.sweeps.application import Application
from convtime.sweeps.axes import AXIS_OPTIONS, Axes, read_axes
from convtime.sweeps.plan import ITERATIONS

_EXAMPLE = "conv2d:n{n}c64h56w56k{k}r3s3p1:{dtype}"
_HOLE = re.compile(r"\{([^\W\d]\w*)\}")  # the name of an axis
_PROBLEMS = tuple(f"{kind.function}:" for kind in KINDS)


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Times statements, or PyTorch's and convtime's layer of a convolution, at each "
        "combination of the values of some axes, with convtime.sweep. "
        f"{snippet.NAMESPACE_HELP} The axes' values are also variables. For example: "
        "convtime sweep 'torch.relu(x)' --setup 'x = torch.randn(n, n)' --axis n=64,256,1024; or: "
        f"convtime sweep '{_EXAMPLE}' --axis n=1,8,64 --axis k=64,128 --axis dtype=float32,float16"
    )
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
    add_run_options(parser)
    snippet.add_setup_options(parser)
    add_timing_options(parser, but=("margin",))
    add_outputs(parser, verbose=True, table=True, markdown=True, reads={"--file": "file"})


def run(options: argparse.Namespace) -> None:
    device = resolve_device(options.device)
    namespace = snippet.fresh_namespace(device)
    are_problems = _are_problems(options)

    def values(axis: str, text: str) -> object:
        if axis in (*AXIS_OPTIONS, ITERATIONS):
            return option_values(text)
        return _problem_values(text) if are_problems else python_values(axis, text, namespace)

    axes = read_axes(
        {axis: values(axis, text) for axis, text in axis_texts(options.axis, "--axis").items()},
        timing_options(options),
    )
    if are_problems:
        applications = _layers(options, axes, device)
    else:
        statements = snippet.named_statements(options)
        applications = applications_of(statements, options, axes, None)
    with resume_hint(options):
        swept = sweep.run(
            applications,
            axes,
            file=options.file,
            counters=options.counters,
            rest=options.rest,
            seed=options.seed,
            executor=options.workers,
        )
    deliver_table(options, swept, device)


def _problem_values(text: str) -> list[Any]:
    """Parse whole numbers; everything else is a string, such as 1x0."""
    parts = map(str.strip, text.split(","))
    # Longer numbers are left to the problem, which refuses them.
    return [int(part) if part.isdecimal() and len(part) <= 10 else part for part in parts]


def _are_problems(options: argparse.Namespace) -> bool:
    are_problems = [statement.startswith(_PROBLEMS) for statement in options.statements]
    if not any(are_problems):
        require(options.side is None, "--side requires problems, got statements")
        return False
    require(
        all(are_problems) and not options.named,
        "statements and problems cannot be timed in one sweep; give either",
    )
    return True


def _layers(
    options: argparse.Namespace, axes: Axes, device: torch.device
) -> dict[str, Application]:
    require(
        not (options.setup or options.before),
        "--setup and --before require statements, got problems",
    )
    lines = options.statements
    check_used(axes, set().union(*map(_holes, lines)), "a name in braces in a problem")
    for line in lines:
        for hole in _holes(line):
            require(
                hole in axes.parameters,
                f"problem {line!r} has {{{hole}}}, but there is no such axis",
            )
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
    rest = _HOLE.sub("", line)
    if "{" in rest or "}" in rest:
        where = min(rest.find(brace) for brace in "{}" if brace in rest)
        raise InputError(
            f"problem {line!r} has {rest[where : where + 20]!r}, but a placeholder must be a name "
            "in braces"
        )
    return _HOLE.findall(line)


def _check_problem(line: str, axes: Axes) -> None:
    """Raise an error if no combination of axis values makes the line a convolution."""
    lines = [
        line.format(**dict(zip(axes.parameters, values, strict=True)))
        for values in itertools.product(*(axes.values[axis] for axis in axes.parameters))
    ]
    for each in lines:
        with contextlib.suppress(InputError):
            ProblemLine.parse(each)
            return
    ProblemLine.parse(lines[0])  # raises


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
