"""The command `convtime`, also `python -m convtime`.

Exit codes: 0 done; 1 a check of `convtime doctor` failed; 2 bad input, with one line on stderr that
says what; 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

import convtime
from convtime import conv_compare, doctor, layers, plot, report
from convtime.layers import InputError
from convtime.provenance import provenance

BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
CHECK_FAILED = 1

_DEVICE_HELP = "cpu, cuda or cuda:N (default: cuda if there is a GPU)"


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in the same single line as every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: the process's own) and returns its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that has no × or µ gets an escape, and not an error after all the timing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = _parser().parse_args(arguments)
        code: int = options.run(options) or 0
    except InputError as error:
        message = report.printable(" ".join(str(error).split()))
        print(f"convtime: error: {message}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("convtime: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        # Python would try again when it exits, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that went away, e.g. `head`, has seen enough.
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output cannot be written ({error.strerror})") from error


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="convtime", description="Times PyTorch operations, and its own.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"convtime {convtime.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    config = commands.add_parser("config", help="show versions, devices and timing methods")
    config.set_defaults(run=_config)

    examine = commands.add_parser(
        "doctor",
        allow_abbrev=False,
        help="find out whether timings can be trusted on this machine",
        description="Times kernels of known duration and a few operations by every method, looks "
        "at the state of GPU and CPU, and gives advice; exits with 1 if a check failed. It takes "
        "up to 20 s on a GPU, and changes nothing.",
    )
    examine.set_defaults(run=_doctor)
    examine.add_argument("--device", help=_DEVICE_HELP)
    examine.add_argument("--json", action="store_true", help="print JSON instead of text")

    compare = commands.add_parser(
        "compare",
        allow_abbrev=False,
        help="time PyTorch's convolution layers next to convtime's",
        description="Times torch.nn's convolutions and convtime.nn's, interleaved, on every "
        "distinct one of ResNet-50, of a CSV file, or of a model, and compares their results and "
        "kernels; of a model also the training step, before and after convtime.nn.replace.",
    )
    compare.set_defaults(run=_compare)
    source = compare.add_mutually_exclusive_group()
    source.add_argument(
        "--layers",
        metavar="CSV",
        help="layers of this file, in columns w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,"
        "stride_h and, if wanted, name,groups,dilation_w,dilation_h",
    )
    source.add_argument(
        "--model",
        metavar="PKG.MOD:FACTORY",
        help="layers of the model that this function returns; needs --input",
    )
    compare.add_argument(
        "--input", type=_shape, metavar="N,C,H,W", help="input shape of --model, e.g. 8,3,224,224"
    )
    compare.add_argument(
        "--batch",
        type=_batch,
        help="images a call (default: 32 for ResNet-50; column n of --layers)",
    )
    compare.add_argument("--dtype", choices=list(conv_compare.DTYPES), default="float32")
    compare.add_argument(
        "--layout",
        choices=list(conv_compare.LAYOUTS),
        default="nchw",
        help="memory format: nchw (contiguous, default) or nhwc (channels_last; channels_last_3d "
        "for volumes, contiguous for one dimension)",
    )
    compare.add_argument(
        "--backward",
        action=argparse.BooleanOptionalAction,
        help="time the gradients too (default: with --model, whose step is forward and backward)",
    )
    compare.add_argument("--device", help=_DEVICE_HELP)
    compare.add_argument(
        "--budget",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time to spend on the samples of each pass, both sides together (default: 1)",
    )
    compare.add_argument("--json", type=Path, help="write rows with all samples, and provenance")
    compare.add_argument("--csv", type=Path, help="write the table")
    compare.add_argument("--plot", type=Path, metavar="PNG", help="draw a picture of the result")
    return parser


def _number(text: str, kind: Callable[[str], Any], expected: str) -> Any:
    """Parses a positive number, with an error that names the value and what is allowed."""
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value <= layers.LARGEST_SIZE:
        raise argparse.ArgumentTypeError(f"got {text!r}, but it must be {expected}")
    return value


def _batch(text: str) -> int:
    expected = f"a whole number from 1 to {layers.LARGEST_SIZE}"
    return int(_number(text, layers.whole_number, expected))


def _seconds(text: str) -> float:
    return float(_number(text, float, "a positive number of seconds"))


def _shape(text: str) -> tuple[int, ...]:
    expected = "positive whole numbers with commas between, such as 8,3,224,224"
    return tuple(_number(size.strip(), layers.whole_number, expected) for size in text.split(","))


def _config(_options: argparse.Namespace) -> None:
    _print(json.dumps(convtime.show_config(), indent=2))


def _doctor(options: argparse.Namespace) -> int:
    device = conv_compare.find_device(options.device)
    if sys.stderr and sys.stderr.isatty():
        print("convtime: this takes some seconds, up to 20 on a GPU", file=sys.stderr)
    examination = doctor.examine(device)
    if options.json:
        _print(report.dump_json(examination.to_dict()))
    else:
        _print(str(examination))
    return 0 if examination.passed else CHECK_FAILED


def _compare(options: argparse.Namespace) -> None:
    # Everything that can be wrong is found out before the first layer is timed.
    device = conv_compare.find_device(options.device)
    outputs = [path for path in (options.json, options.csv, options.plot) if path]
    for path in outputs:
        report.check_writable(path)
    files = [path for path in (options.layers, *outputs) if path]
    if len(set(map(os.path.realpath, files))) < len(files):
        raise InputError("--layers, --json, --csv and --plot must name different files")
    if options.plot:
        plot.check_plot(options.plot)
    model = _model(options, device)
    problems = _layers(options, model)
    for path in outputs:
        if options.model and layers.is_source_of(options.model, path):
            raise InputError(f"{path}: is the source of --model, and would be overwritten")

    backward = model is not None if options.backward is None else options.backward
    conditions = {"dtype": options.dtype, "layout": options.layout, "budget": options.budget}
    step = None
    if model and backward:
        step = conv_compare.compare_step(model, **conditions)
    del model  # the layers need its memory
    passes = conv_compare.PASSES if backward else (conv_compare.FORWARD,)
    comparisons = conv_compare.compare_layers(problems, device=device, passes=passes, **conditions)
    # disable=None: a bar on a terminal, nothing in a pipe or file; a closed stderr is None.
    disable = None if sys.stderr else True
    total = len(problems) * len(passes)
    bar = tqdm(comparisons, total=total, unit="pass", disable=disable, leave=False)
    with bar:
        results = list(bar)

    facts = provenance(device)
    title = f"{facts['gpu'] or facts['cpu']}; {options.dtype}, {options.layout}"
    try:
        if options.json:
            report.write_file(options.json, report.to_json(results, facts, step))
        if options.csv:
            report.write_file(options.csv, report.to_csv(results))
        if options.plot:
            report.write_file(options.plot, plot.draw(results, title, options.plot.suffix))
    finally:
        # After the files, which a reader that closes the pipe early must not cost; but also when
        # one cannot be written, which must not cost the result.
        methods = sorted(
            {
                f"{r.convtime.method} (queue: {r.convtime.queue}, cache: {r.convtime.cache})"
                for r in results
            }
        )
        parts = [f"{title}; torch {facts['torch']}; timed by {', '.join(methods)}"]
        if options.model:
            parts.append(report.kernels(results))
        parts.append(report.table(results))
        if step:
            parts += [step.replaced, report.step_line(step)]
        _print("\n\n".join(filter(None, parts)))


def _model(options: argparse.Namespace, device: Any) -> layers.LoadedModel | None:
    if options.model is None:
        if options.input is not None:
            raise InputError("--input goes with --model only")
        return None
    if options.input is None:
        raise InputError("--model needs --input, the shape of its input, e.g. 8,3,224,224")
    if options.batch is not None:
        raise InputError("--batch does not go with --model; the batch is part of --input")
    return layers.load_model(options.model, options.input, device)


def _layers(
    options: argparse.Namespace, model: layers.LoadedModel | None
) -> list[layers.ConvLayer]:
    if model is not None:
        return layers.from_model(model)
    if options.layers is not None:
        return layers.from_csv(options.layers, options.batch)
    return layers.resnet50() if options.batch is None else layers.resnet50(options.batch)
