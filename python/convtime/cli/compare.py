"""`convtime compare`: PyTorch's convolution layers next to convtime's."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import torch
from tqdm import tqdm

from convtime.cli import arguments
from convtime.cli.output import deliver, print_result
from convtime.conv.compare import FORWARD, MARGIN, PASSES, LayerResult, compare_layers
from convtime.conv.layouts import DTYPES, LAYOUTS
from convtime.conv.problem import ConvLayer
from convtime.conv.sources.csv_file import from_csv
from convtime.conv.sources.model import LoadedModel, from_model, is_source_of, load_model
from convtime.conv.sources.resnet50 import resnet50
from convtime.conv.step import StepResult, compare_step
from convtime.core.errors import InputError
from convtime.core.files import check_writable, write_file
from convtime.core.provenance import provenance
from convtime.device.resolve import resolve_device
from convtime.results.comparison import Failure, Verdict, exit_code_of
from convtime.show import convolutions, plot


def add_to(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
    parser = commands.add_parser(
        "compare",
        allow_abbrev=False,
        help="time PyTorch's convolution layers next to convtime's",
        description="Times torch.nn's convolutions and convtime.nn's, interleaved, on every "
        "distinct one of ResNet-50, of a CSV file, or of a model, and compares their results and "
        "kernels; of a model also the training step, before and after convtime.nn.replace.",
    )
    parser.set_defaults(run=_run)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--layers",
        type=arguments.file_name,
        metavar="CSV",
        help="layers of this file, in columns w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,"
        "stride_h and, if wanted, name,groups,dilation_w,dilation_h",
    )
    source.add_argument(
        "--model",
        metavar="PKG.MOD:FACTORY",
        help="layers of the model that this function returns; needs --input",
    )
    parser.add_argument(
        "--input",
        type=arguments.shape,
        metavar="N,C,H,W",
        help="input shape of --model, e.g. 8,3,224,224",
    )
    parser.add_argument(
        "--batch",
        type=arguments.batch,
        help="images a call (default: 32 for ResNet-50; column n of --layers)",
    )
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument(
        "--layout",
        choices=list(LAYOUTS),
        default="nchw",
        help="memory format: nchw (contiguous, default) or nhwc (channels_last; channels_last_3d "
        "for volumes, contiguous for one dimension)",
    )
    parser.add_argument(
        "--backward",
        action=argparse.BooleanOptionalAction,
        help="time the gradients too (default: with --model, whose step is forward and backward)",
    )
    parser.add_argument("--device", help=arguments.DEVICE_HELP)
    parser.add_argument(
        "--budget",
        type=arguments.seconds,
        default=1.0,
        metavar="SECONDS",
        help="time to spend on the samples of each pass, both sides together (default: 1)",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        choices=get_args(Failure),
        default=[],
        help="exit with 1 where convtime is slower or faster than PyTorch by more than "
        f"{100 * MARGIN:g} %%, where that is uncertain, or where its result has other bits "
        "although PyTorch's own repeat; may be given several times",
    )
    parser.add_argument(
        "--uncertain",
        type=arguments.exit_code,
        default=0,
        metavar="CODE",
        help="what to exit with where nothing of --fail-on is found, and it is uncertain whether a "
        "layer is slower or faster (default: 0)",
    )
    output = functools.partial(parser.add_argument, type=arguments.file_name)
    output("--json", help="write rows with all samples, and provenance")
    output("--csv", help="write the table")
    output("--plot", metavar="PNG", help="draw a picture of the result")


def _run(options: argparse.Namespace) -> int:
    # Everything that can be wrong is found out before the first layer is timed.
    device = resolve_device(options.device)
    outputs = [path for path in (options.json, options.csv, options.plot) if path]
    for path in outputs:
        check_writable(path)
    files = [path for path in (options.layers, *outputs) if path]
    if len(set(map(os.path.realpath, files))) < len(files):
        raise InputError("--layers, --json, --csv and --plot must name different files")
    if options.plot:
        plot.check_plot(options.plot)
    model = _model(options, device)
    layers, empty = _layers(options, model)
    for path in outputs:
        if options.model and is_source_of(options.model, path):
            raise InputError(f"{path}: is the source of --model, and would be overwritten")

    backward = model is not None if options.backward is None else options.backward
    conditions = {"dtype": options.dtype, "layout": options.layout, "budget": options.budget}
    step = None
    if model and backward:
        step = compare_step(model, **conditions)
    del model  # the layers need its memory
    passes = PASSES if backward else (FORWARD,)
    comparisons = compare_layers(layers, device=device, passes=passes, **conditions)
    # disable=None: a bar on a terminal, nothing in a pipe or file; a closed stderr is None.
    disable = None if sys.stderr else True
    total = len(layers) * len(passes)
    bar = tqdm(comparisons, total=total, unit="pass", disable=disable, leave=False)
    with bar:
        results = list(bar)

    found = list(_found(results, step))
    code = exit_code_of([what for _, what in found], options.fail_on, options.uncertain)
    causes = [each for each in found if each[1] in options.fail_on]
    causes = causes or [each for each in found if each[1] == "uncertain"]
    facts = provenance(device)
    title = f"{facts['gpu'] or facts['cpu']}; {options.dtype}, {options.layout}"

    def text() -> str:
        methods = sorted(
            {
                f"{result.convtime.method} (queue: {result.convtime.queue}, "
                f"cache: {result.convtime.cache})"
                for result in results
            }
        )
        parts = [f"{title}; torch {facts['torch']}; timed by {', '.join(methods)}"]
        if options.model:
            parts.append(convolutions.kernels(results))
        parts += [convolutions.table(results), convolutions.empty_line(empty)]
        if step:
            parts += [step.replaced, convolutions.step_line(step)]
        parts.append(convolutions.exit_line(code, causes))
        return "\n\n".join(filter(None, parts))

    deliveries: list[Callable[[], None]] = []
    if options.json:
        deliveries.append(
            lambda: write_file(options.json, convolutions.to_json(results, facts, step, empty))
        )
    if options.csv:
        deliveries.append(lambda: write_file(options.csv, convolutions.to_csv(results)))
    if options.plot:
        deliveries.append(
            lambda: write_file(options.plot, plot.draw(results, title, options.plot.suffix))
        )
    deliveries.append(lambda: print_result(text()))
    deliver(deliveries)
    return code


def _found(
    results: Sequence[LayerResult], step: StepResult | None
) -> Iterator[tuple[str, Failure | Verdict]]:
    """What a layer or the step is, with its title; a layer may be of two kinds."""
    for result in results:
        yield result.title, result.verdict
        if result.pytorch_repeats and not result.bit_identical:
            yield result.title, "other-result"
    if step is not None:
        yield "the training step", step.ratio.verdict(MARGIN)


def _model(options: argparse.Namespace, device: torch.device) -> LoadedModel | None:
    if options.model is None:
        if options.input is not None:
            raise InputError("--input goes with --model only")
        return None
    if options.input is None:
        raise InputError("--model needs --input, the shape of its input, e.g. 8,3,224,224")
    if options.batch is not None:
        raise InputError("--batch does not go with --model; the batch is part of --input")
    return load_model(options.model, options.input, device)


def _layers(
    options: argparse.Namespace, model: LoadedModel | None
) -> tuple[list[ConvLayer], tuple[str, ...]]:
    """What is to be timed, and the names of a model's layers that were called on nothing."""
    if model is not None:
        found = from_model(model)
        return found.layers, found.empty
    if options.layers is not None:
        return from_csv(options.layers, options.batch), ()
    return resnet50() if options.batch is None else resnet50(options.batch), ()
