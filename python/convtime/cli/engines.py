"""`convtime engines`: time every engine that cuDNN has for a convolution."""

from __future__ import annotations

import argparse

from convtime.cli import arguments
from convtime.cli.output import add_outputs, deliver
from convtime.conv.binding import call_of
from convtime.conv.call import DTYPES, FPROP, LAYOUTS, PASSES
from convtime.conv.engine_listing import engines_of
from convtime.conv.problem_line import EXAMPLE, ProblemLine
from convtime.core.checks import require
from convtime.device.resolve import resolve_device


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists and times every engine that cuDNN has for a convolution, next to PyTorch's choice, "
        f"with convtime.conv.engines. For example: convtime engines {EXAMPLE}"
    )
    parser.add_argument(
        "problem",
        metavar="PROBLEM",
        help=f"a convolution such as {EXAMPLE}, as docs/reference/convolution-lines.md describes",
    )
    parser.add_argument(
        "--dtype",
        choices=list(DTYPES),
        default="float32",
        help="for a problem that does not specify one (default: %(default)s)",
    )
    parser.add_argument(
        "--layout",
        choices=list(LAYOUTS),
        default="nchw",
        help="for a problem that does not specify one (default: %(default)s)",
    )
    parser.add_argument("--backward", action="store_true", help="also of the gradients")
    parser.add_argument("--device", help=arguments.DEVICE_HELP)
    add_outputs(parser, verbose=True, plot="time against workspace")


def run(options: argparse.Namespace) -> None:
    device = resolve_device(options.device)
    require(device.type == "cuda", f"engines needs a GPU, where cuDNN runs, got device {device}")
    line = ProblemLine.parse(options.problem)
    form = line.dtype or options.dtype, line.layout or options.layout
    call = call_of(line.problem, *form, device)
    passes = PASSES if options.backward else (FPROP,)
    table = engines_of(call, call.tensors(device, backward=False), passes)
    deliver(options, table)
