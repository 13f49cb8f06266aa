"""`convtime upgrade`: the changes of layers or tests from one interpreter to another."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convtime.cli import arguments
from convtime.cli.output import add_outputs, deliver
from convtime.cli.verdicts import add_verdict_options, judge
from convtime.conv.call import LAYOUTS
from convtime.conv.problem_line import EXAMPLE, ProblemLine
from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.core.kinds import KINDS
from convtime.upgrading import probe, pytest_probe
from convtime.upgrading.interpreters import Interpreters
from convtime.upgrading.result import FINDS
from convtime.upgrading.upgrade import BUDGET, MARGIN, PAIRS, upgrade
from convtime.upgrading.upgrade_tests import upgrade_tests
from convtime.view.progress import ProgressBar


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Times each layer of a model, convolutions in one line each, or tests, with two "
        "interpreters that alternate on one device, such as two versions of torch or cuDNN. Lists "
        "the passes and tests whose time changed, by what they add, with their causes. Only torch "
        "is needed in both; tests also need pytest and convtime there."
    )
    for which in ("old", "new"):
        parser.add_argument(
            f"--{which}",
            required=True,
            metavar="PYTHON",
            help=f"the {which} interpreter, e.g. /path/to/{which}/bin/python",
        )
    parser.add_argument(
        "source",
        nargs="+",
        metavar="MODEL|LINE|TESTS",
        help="PKG.MOD:FACTORY, which returns a model and is importable in both; convolutions "
        f"such as {EXAMPLE}; or files, folders or ids of pytest tests with convtime's fixtures",
    )
    parser.add_argument(
        "--input",
        type=arguments.shape,
        metavar="N,C,H,W",
        help="shape of the model's only input, e.g. 8,3,224,224",
    )
    parser.add_argument(
        "--layer",
        action="append",
        default=[],
        metavar="NAME",
        help="compare only this layer; can be repeated (default: the step and all layers)",
    )
    parser.add_argument("--device", default=None, help=arguments.DEVICE_HELP)
    parser.add_argument(
        "--budget",
        type=arguments.seconds,
        metavar="SECONDS",
        help=f"time for each pass of a model, both interpreters together (default: {BUDGET:g})",
    )
    parser.add_argument(
        "--margin",
        type=arguments.number,
        default=MARGIN,
        metavar="SHARE",
        help=f"relative difference that counts as equal (default: {MARGIN:g})",
    )
    parser.add_argument(
        "--pairs",
        type=arguments.count,
        default=PAIRS,
        metavar="COUNT",
        help=f"fresh pairs of processes that confirm each finding (default: {PAIRS})",
    )
    add_verdict_options(
        parser,
        FINDS,
        "a pass is slower or faster by more than the margin, this is uncertain, only one "
        "interpreter can run it, or its results differ in their bits",
    )
    add_outputs(parser, verbose=True, markdown=True)


def run(options: argparse.Namespace) -> int:
    require(
        0 <= options.margin < 1,
        f"--margin must be a share, 0 or more and below 1, got {options.margin}",
    )
    tests = _are_tests(options.source)
    program: tuple[str, ...]
    if tests:
        program, load = (pytest_probe.__file__,), _load_tests(options)
    else:
        program, load = (probe.__file__, _device(options.device)), _load(options)
    interpreters = Interpreters(
        *(options.old, options.new, program, load), _command(options, load["do"])
    )
    with ProgressBar(unit="pass") as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.update(description=what, completed=done, total=total)

        judging: dict[str, Any] = {"margin": options.margin, "pairs": options.pairs}
        judging["progress"] = progress
        if tests:
            result = upgrade_tests(interpreters, **judging)
        else:
            budget = BUDGET if options.budget is None else options.budget
            result = upgrade(interpreters, layers=options.layer, budget=budget, **judging)
    if not result.step and not result.layers:
        why_not = (*result.failures, *result.missing[-1:])[0]
        raise InputError(f"nothing was compared: {why_not}")
    code, why = judge(result.findings, options)
    deliver(options, result, why, markdown=lambda: result.to_markdown(options.fail_on))
    if result.interrupted:
        raise KeyboardInterrupt  # passes that were not timed may be slower
    return code


def _device(device: str | None) -> str:
    if device is None:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    require(
        re.fullmatch(r"cpu|cuda(:\d+)?", device),
        f"--device must be cpu, cuda or cuda:N, got {device!r}",
    )
    return device


def _are_tests(source: Sequence[str]) -> bool:
    paths = [test.partition("::")[0] for test in source]
    absent = [path for path in paths if not Path(path).exists()]
    for path in absent:
        is_path = path.endswith(".py") or (":" not in path and len(absent) < len(paths))
        require(not is_path, f"{path} does not exist")
    return not absent


def _load_tests(options: argparse.Namespace) -> dict[str, Any]:
    """Return the question that loads the tests in both interpreters."""
    for name in ("input", "layer", "device", "budget"):
        require(
            not getattr(options, name),
            f"--{name} is for models and convolutions; tests choose it themselves, with the "
            "options of convtime's fixtures, and are selected by their ids",
        )
    return {"do": "load_tests", "paths": options.source}


def _load(options: argparse.Namespace) -> dict[str, Any]:
    """Return the question that loads the layers in both interpreters."""
    functions = {kind.function for kind in KINDS}
    lines = [text for text in options.source if text.partition(":")[0] in functions]
    if lines and len(lines) == len(options.source):
        require(
            options.input is None,
            "--input requires a model; a convolution in one line has its sizes",
        )
        return {"do": "load_lines", "lines": [_line(text) for text in dict.fromkeys(lines)]}
    require(
        not lines and len(options.source) == 1,
        "MODEL must be one model, convolutions in one line each, or paths to tests; got "
        f"{' '.join(options.source)}",
    )
    (model,) = options.source
    require(
        all(model.partition(":")),
        f"MODEL must look like package.module:factory, be a convolution such as {EXAMPLE}, or "
        f"be a path to tests; got {model!r}",
    )
    require(
        options.input is not None,
        "a model needs --input, the shape of its input, e.g. 8,3,224,224",
    )
    return {"do": "load_model", "model": model, "shape": options.input}


def _line(text: str) -> dict[str, Any]:
    """Return a convolution's torch.nn layer and its input, as the probe takes them."""
    line = ProblemLine.parse(text)
    problem = line.problem
    names = [
        *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"),
        *("groups", "bias", "padding_mode", *(["output_padding"] if problem.transposed else [])),
    ]
    return {
        "name": text,
        "layer": problem.kind.layer,
        "parameters": {name: getattr(problem, name) for name in names},
        "sizes": problem.input_shape,
        "dtype": line.dtype or "float32",
        "channels_last": (line.layout or LAYOUTS[0]) != LAYOUTS[0],
    }


def _command(options: argparse.Namespace, do: str) -> str:
    """Return the command for one of what ``do`` loads, before its name."""
    command = ["convtime", "upgrade", "--old", options.old, "--new", options.new]
    if options.device:
        command += ["--device", options.device]
    if do == "load_model":
        size = ",".join(map(str, options.input))
        command += [*options.source, "--input", size, "--layer"]
    return shlex.join(command)
