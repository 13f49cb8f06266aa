"""`convtime tune`: choose cuDNN's plans for convolutions."""

from __future__ import annotations

import argparse
import itertools

from convtime.cli import arguments
from convtime.cli.layers import add_layer_options, layers_of, model_of
from convtime.cli.output import add_outputs, deliver
from convtime.conv.binding import call_of
from convtime.conv.call import FPROP, PASSES
from convtime.conv.plans.passes import distinct_passes
from convtime.conv.plans.plan_set import Plans, read_plans
from convtime.conv.plans.tune import revalidate, tune
from convtime.core.checks import require
from convtime.core.files import check_writable
from convtime.device.resolve import resolve_device


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Chooses the fastest plan of cuDNN for each convolution with convtime.conv.tune, and "
        "writes the choices to a file, which convtime.conv.load_plans or CONVTIME_PLANS makes "
        "convtime's convolutions use."
    )
    add_layer_options(parser)
    parser.add_argument(
        "--backward",
        action=argparse.BooleanOptionalAction,
        help="choose for the gradients too (default: with --model)",
    )
    parser.add_argument("--device", help=arguments.DEVICE_HELP)
    parser.add_argument(
        "--budget",
        type=arguments.seconds,
        default=1.5,
        metavar="SECONDS",
        help="planned duration of the search for each pass (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=arguments.workers,
        metavar="N|gpus",
        help="search in processes at the same time: one on each GPU (gpus), or on N of them",
    )
    parser.add_argument(
        "--workspace-limit", type=int, metavar="BYTES", help="largest workspace of a plan"
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="only plans that give the same bits in each run",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1.1,
        help="largest error of a plan, relative to PyTorch's (default: %(default)s)",
    )
    parser.add_argument(
        "--save",
        type=arguments.file_name,
        metavar="FILE",
        help="add the plans to this file, which keeps those of other problems and GPUs",
    )
    parser.add_argument(
        "--revalidate",
        type=arguments.file_name,
        metavar="FILE",
        help="instead of searching, check the plans of this file with the cuDNN that is installed, "
        "and write those that are still faster",
    )
    add_outputs(parser, verbose=True)


def run(options: argparse.Namespace) -> None:
    for path in (options.save, options.revalidate):
        if path is not None:
            check_writable(path)
    plans = _revalidate(options) if options.revalidate else _tune(options)
    if options.save:
        plans.add_to(options.save)
    deliver(options, plans)


def _revalidate(options: argparse.Namespace) -> Plans:
    require(
        not (options.problems or options.layers or options.model or options.save),
        "--revalidate checks the plans of its file; leave out problems, --layers, --model and "
        "--save",
    )
    plans = revalidate(read_plans(options.revalidate))
    plans.save(options.revalidate)
    return plans


def _tune(options: argparse.Namespace) -> Plans:
    device = resolve_device(options.device)
    require(device.type == "cuda", f"tune needs a GPU, where cuDNN runs, got device {device}")
    model = model_of(options, device)
    backward = model is not None if options.backward is None else options.backward
    chosen = {
        "device": options.device,
        "executor": options.workers,
        "passes": PASSES if backward else (FPROP,),
        "budget": options.budget,
        "workspace_limit": options.workspace_limit,
        "deterministic": options.deterministic,
        "tolerance": options.tolerance,
    }
    if model is not None:
        return tune(model.module, model.example, **chosen)
    layers, _empty = layers_of(options, None, device)
    calls = [call_of(layer.problem, dtype, layout, device) for layer, dtype, layout in layers]
    passes = distinct_passes(itertools.product(calls, chosen["passes"]))
    return tune(passes, **chosen)
