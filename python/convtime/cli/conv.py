"""`convtime conv`: time PyTorch's convolution layers against convtime's."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tqdm import tqdm

from convtime.cli import arguments
from convtime.cli.output import add_outputs, check_outputs, deliver_result
from convtime.cli.verdicts import add_verdict_options, judge
from convtime.conv import show as convolutions
from convtime.conv.compare import FORWARD, MARGIN, PASSES, LayerResult, compare_layers
from convtime.conv.layouts import DTYPES, LAYOUTS
from convtime.conv.plot import layers_figure
from convtime.conv.problem import ConvLayer
from convtime.conv.problem_line import EXAMPLE, ProblemLine
from convtime.conv.sources.csv_file import from_csv
from convtime.conv.sources.model import LoadedModel, from_model, is_source_of, load_model
from convtime.conv.sources.resnet50 import resnet50
from convtime.conv.step import StepResult, compare_step
from convtime.core.errors import InputError
from convtime.core.provenance import provenance
from convtime.device.resolve import resolve_device
from convtime.timing.comparison import FINDS
from convtime.timing.verdict import Finding


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command to its parser."""
    parser.description = (
        "Times convolutions of torch.nn and convtime.nn, interleaved, and compares "
        "their results and kernels: on every distinct one of ResNet-50, of a CSV file, or of a "
        "model, or on problems in one line each. For a model, it also times the training step, "
        "before and after convtime.nn.replace. For each slower or different layer it prints the "
        "command that runs it again."
    )
    parser.set_defaults(run=_run)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "problems",
        nargs="*",
        default=[],
        metavar="PROBLEM",
        help=f"a convolution such as {EXAMPLE}, as docs/reference/convolution-lines.md describes",
    )
    source.add_argument(
        "--layers",
        type=arguments.file_name,
        metavar="CSV",
        help="layers of this file, in columns w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,"
        "stride_h and optionally name,groups,dilation_w,dilation_h",
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
        help="images per call (default: 32 for ResNet-50, 8 on a CPU; column n of --layers; n of a "
        "problem)",
    )
    parser.add_argument(
        "--dtype",
        choices=list(DTYPES),
        default="float32",
        help="default for layers and problems that do not specify one (default: float32)",
    )
    parser.add_argument(
        "--layout",
        choices=list(LAYOUTS),
        default="nchw",
        help="memory format for layers and problems that do not specify one: nchw (contiguous, "
        "default) or nhwc (channels_last; channels_last_3d in 3-D, contiguous in 1-D)",
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
        help="sampling time for each pass, both sides together (default: 1)",
    )
    add_verdict_options(
        parser,
        FINDS,
        f"a layer is slower or faster than PyTorch's by more than {100 * MARGIN:g} %, this is "
        "uncertain, its result is different (other bits although PyTorch's own repeat), or busy "
        "time and span contradict each other",
    )
    add_outputs(parser, table=True)


# Images per call of ResNet-50's layers. With this, a CPU takes half a minute for all layers.
_BATCH = {"cuda": 32, "cpu": 8}


@dataclasses.dataclass(frozen=True)
class _Group:
    """Layers that are timed with one dtype and layout."""

    dtype: str
    layout: str
    layers: list[ConvLayer]


def _run(options: argparse.Namespace) -> int:
    # Check all inputs before the first layer is timed.
    device = resolve_device(options.device)
    check_outputs(options, {"--layers": options.layers})
    model = _model(options, device)
    groups, empty = _groups(options, model, device)
    backward = model is not None if options.backward is None else options.backward
    step = None
    if model and backward:
        step = compare_step(
            model, dtype=options.dtype, layout=options.layout, budget=options.budget
        )
    del model  # the layers need its memory
    passes = PASSES if backward else (FORWARD,)
    results = _compare(groups, passes, device=device, budget=options.budget)

    code, why = judge(list(_found(results, step)), options)
    facts = provenance(device)
    forms = dict.fromkeys(f"{group.dtype}, {group.layout}" for group in groups)
    title = f"{facts['gpu'] or facts['cpu']}; {' and '.join(forms)}"

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
        parts += [
            convolutions.table(results),
            convolutions.reproducers(results),
            convolutions.empty_line(empty),
        ]
        if step:
            parts += [step.replaced, convolutions.step_line(step)]
        return "\n\n".join(filter(None, parts))

    deliver_result(
        options,
        text,
        lambda: convolutions.to_json(results, facts, step, empty),
        why,
        csv=lambda: convolutions.to_csv(results),
        plot=lambda: layers_figure(results, title).content(options.plot.suffix),
    )
    return code


def _compare(
    groups: Sequence[_Group], passes: Sequence[str], **conditions: Any
) -> list[LayerResult]:
    comparisons = itertools.chain.from_iterable(
        compare_layers(
            group.layers, passes=passes, dtype=group.dtype, layout=group.layout, **conditions
        )
        for group in groups
    )
    # disable=None: a bar on a terminal, nothing in a pipe or file; if stderr is closed, it is None.
    disable = None if sys.stderr else True
    total = sum(len(group.layers) for group in groups) * len(passes)
    with tqdm(comparisons, total=total, unit="pass", disable=disable, leave=False) as bar:
        return list(bar)


def _found(results: Sequence[LayerResult], step: StepResult | None) -> Iterator[Finding]:
    """Yield the findings for layers and the step, with their titles; a layer can have several."""
    for result in results:
        yield result.title, result.verdict
        if result.is_different:
            yield result.title, "different"
        if result.contradiction:
            yield result.title, "contradictory"
    if step is not None:
        yield "the training step", step.ratio.verdict(MARGIN)


def _model(options: argparse.Namespace, device: torch.device) -> LoadedModel | None:
    if options.model is None:
        if options.input is not None:
            raise InputError("--input requires --model")
        return None
    if options.input is None:
        raise InputError("--model needs --input, the shape of its input, e.g. 8,3,224,224")
    if options.batch is not None:
        raise InputError("--batch must not be used with --model; the batch is part of --input")
    model = load_model(options.model, options.input, device)
    for path in (options.json, options.csv, options.plot):
        if path and is_source_of(options.model, path):
            raise InputError(f"{path}: is the source of --model, and would be overwritten")
    return model


def _groups(
    options: argparse.Namespace, model: LoadedModel | None, device: torch.device
) -> tuple[list[_Group], tuple[str, ...]]:
    """Return the layers to time, and the names of a model's layers that had empty inputs."""
    if options.problems:
        return _groups_of_problems(options), ()
    empty: tuple[str, ...] = ()
    if model is not None:
        found = from_model(model)
        layers, empty = found.layers, found.empty
    elif options.layers is not None:
        layers = from_csv(options.layers, options.batch)
    else:
        layers = resnet50(options.batch or _BATCH[device.type])
    return [_Group(options.dtype, options.layout, layers)], empty


def _groups_of_problems(options: argparse.Namespace) -> list[_Group]:
    """Group the problems in the given order; neighbors with one dtype and layout share a group."""
    groups: list[_Group] = []
    for number, line in enumerate(map(ProblemLine.parse, options.problems), start=1):
        problem = line.problem
        if options.batch is not None:
            problem = dataclasses.replace(problem, batch=options.batch)
        form = line.dtype or options.dtype, line.layout or options.layout
        if not groups or form != (groups[-1].dtype, groups[-1].layout):
            groups.append(_Group(*form, []))
        groups[-1].layers.append(ConvLayer((f"problem {number}",), problem))
    return groups
