"""The convolutions that a command is about: problems, a CSV file, a model, or ResNet-50."""

from __future__ import annotations

import argparse
import dataclasses

import torch

from convtime.cli import arguments
from convtime.conv.call import DTYPES, LAYOUTS
from convtime.conv.csv_file import from_csv
from convtime.conv.model import LoadedModel, from_model, is_source_of, load_model
from convtime.conv.problem import ConvLayer
from convtime.conv.problem_line import EXAMPLE, ProblemLine
from convtime.conv.resnet50 import resnet50
from convtime.core.checks import require

# Images per call of ResNet-50's layers. With this, a CPU takes half a minute for all layers.
_BATCH = {"cuda": 32, "cpu": 1}
#: A layer with its dtype and its layout.
FormedLayer = tuple[ConvLayer, str, str]


def add_layer_options(parser: argparse.ArgumentParser) -> None:
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
        help="images per call (default: 32 for ResNet-50, 1 on a CPU; column n of --layers; n of a "
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


def model_of(options: argparse.Namespace, device: torch.device) -> LoadedModel | None:
    if options.model is None:
        require(options.input is None, "--input requires --model")
        return None
    require(
        options.input is not None,
        "--model needs --input, the shape of its input, e.g. 8,3,224,224",
    )
    require(
        options.batch is None,
        "--batch must not be used with --model; the batch is part of --input",
    )
    model = load_model(options.model, options.input, device)
    for name in ("json", "csv", "plot", "save"):
        path = getattr(options, name, None)
        require(
            not (path and is_source_of(options.model, path)),
            f"{path}: is the source of --model, and would be overwritten",
        )
    return model


def layers_of(
    options: argparse.Namespace, model: LoadedModel | None, device: torch.device
) -> tuple[list[FormedLayer], tuple[str, ...]]:
    """Return the layers to time, and the names of a model's layers that had empty inputs."""
    empty: tuple[str, ...] = ()
    if options.problems:
        formed = []
        for number, line in enumerate(map(ProblemLine.parse, options.problems), start=1):
            batch = options.batch or line.problem.batch
            problem = dataclasses.replace(line.problem, batch=batch)
            layer = ConvLayer((f"problem {number}",), problem)
            formed.append((layer, line.dtype or options.dtype, line.layout or options.layout))
        return formed, empty
    if model is not None:
        layers, empty = from_model(model)
    elif options.layers is not None:
        layers = from_csv(options.layers, options.batch)
    else:
        layers = resnet50(options.batch or _BATCH[device.type])
    return [(layer, options.dtype, options.layout) for layer in layers], empty
