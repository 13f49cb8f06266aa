"""`convtime compare`: time statements in interleaved order, or compare two files of results."""

from __future__ import annotations

import argparse
import codecs
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from convtime.cli import arguments, snippet
from convtime.cli.axes import (
    add_run_options,
    applications_of,
    axis_texts,
    deliver_table,
    option_values,
    python_values,
    resume_hint,
)
from convtime.cli.exit_codes import DONE
from convtime.cli.output import add_outputs, deliver_result
from convtime.cli.timing_options import add_timing_options, timing_options
from convtime.cli.verdicts import add_verdict_options, judge
from convtime.core.checks import check_one_of, require
from convtime.core.child import job
from convtime.core.errors import InputError
from convtime.core.files import check_distinct
from convtime.device.resolve import resolve_device
from convtime.exchange.files import read_baseline, with_names_in_common
from convtime.regression.changes import FINDS as FINDS_IN_FILES
from convtime.regression.compare_runs import compare_runs
from convtime.regression.differences import SameGpu
from convtime.sweeps import compare as comparing
from convtime.sweeps.axes import AXIS_OPTIONS, read_axes
from convtime.sweeps.comparison_table import ComparisonTable
from convtime.timing.compare import compare, confirm_ratios
from convtime.timing.comparison import FINDS, Comparison
from convtime.timing.options import Options
from convtime.timing.result_check import Check
from convtime.timing.verdict import Ratio
from convtime.view.wording import printable

_SHARED_OPTIONS = (
    *("statements", "margin", "fail_on", "uncertain"),
    *("json", "markdown", "verbose"),
)
# Options that only files take.
_FILE_OPTIONS = ("false_discoveries", "same_gpu", "relative")
_MARGIN = Options().margin
_BEGINNING = 100  # bytes: more than a byte order mark and some white space


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Times statements, interleaved, and compares their times and results, with "
        f"convtime.compare. {snippet.NAMESPACE_HELP} They share one setup. For example: convtime "
        "compare -n relu='torch.relu(x)' -n clamp='torch.clamp(x, 0)' --setup "
        "'x = torch.randn(1 << 20)' --fail-on slower,different; or, with the setup for each point: "
        "convtime compare 'torch.relu(x)' 'torch.clamp(x, 0)' --setup 'x = torch.randn(n, n)' "
        "--over n=64,256,1024. Two existing files of results, BEFORE and AFTER, are compared "
        "instead: their measurements with the same names, from any tool that "
        "convtime.read_measurements reads, or the only one of each, and all other differences."
    )
    snippet.add_statements(parser, "to compare, or two files of results", "STATEMENT|FILE")
    add_options(parser)
    _add_file_options(parser)
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="compare again in a fresh process; verdicts that it does not confirm become uncertain",
    )
    add_verdict_options(
        parser,
        tuple(dict.fromkeys(FINDS + FINDS_IN_FILES)),
        "one is slower or faster than the baseline, or than before, by more than the margin, this "
        "is uncertain, or busy time and span contradict each other; of statements, also a result "
        "that is different; of files, also a name that is missing from the later file or new in "
        "it, or a call on the CPU that executes over 1 % more instructions",
    )
    add_outputs(parser, verbose=True, table=True, markdown=True, reads={"--file": "file"})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="compare at each value; can be repeated, for each combination. It is a "
        "variable of statements and setup (with Python values), or a timing option such as cache",
    )
    add_run_options(parser)
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="the statement to compare the others with (default: the first)",
    )
    snippet.add_setup_options(parser)
    parser.add_argument(
        "--check",
        choices=(*get_args(Check), "none"),
        default="close",
        help="compare results with the baseline's: close (within a tolerance for each dtype, the "
        "default), exact (to the bit), or none",
    )
    parser.add_argument(
        "--control",
        action="store_true",
        help="also time a duplicate of the baseline; if it is found to differ, no verdict counts",
    )
    parser.add_argument(
        "--interference",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also time each in isolation, to find those whose time changes when they run with the "
        "others",
    )
    add_timing_options(parser, defaults={"stop": "verdict; interval for a single statement"})


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "files of results",
        "--margin is relative to the earlier time; its default is each test's own if BEFORE is a "
        "calibrated run of the pytest plugin, and 0.03 for others.",
    )
    group.add_argument(
        "--false-discoveries",
        type=arguments.number,
        default=0.05,
        metavar="SHARE",
        help="expected false-discovery rate: share of wrong findings among all that are found to "
        "be slower or faster (default: 0.05)",
    )
    group.add_argument(
        "--same-gpu",
        choices=get_args(SameGpu),
        default="model",
        help="which GPU counts as the same: any of the same model (the default), or only the same "
        "device; times on others are uncertain",
    )
    group.add_argument(
        "--relative",
        action="store_true",
        help="judge candidates by their ratio to their baseline, as the pytest plugin saves it",
    )


def run(options: argparse.Namespace) -> int:
    files = None if options.named else _files_of(options.statements)
    if files is not None:
        _check_taken(options, FINDS_IN_FILES, "statements, got two files of results")
        return _run_files(options, *files)
    _check_taken(options, FINDS, "two files of results, got statements")
    statements = snippet.named_statements(options)
    check_baseline(options, statements)
    if options.over:
        return _run_over(options, statements)
    check_only_over(options)
    with snippet.prepare(options) as (namespace, device):
        compared = compare_statements(statements, options, namespace)
    if options.confirm and compared.others:
        compared = dataclasses.replace(compared, confirmation=_confirmation(options))
    code, why = judge(compared.findings, options)
    snippet.deliver(options, compared, device, why)
    return code


def _check_taken(options: argparse.Namespace, finds: Sequence[str], needed: str) -> None:
    """Raise an InputError if an option, or a value of --fail-on, is for the other use."""
    parser = argparse.ArgumentParser(add_help=False)
    add_to(parser)
    of_files = finds is FINDS_IN_FILES
    for action in parser._actions:
        for_files = action.dest in _FILE_OPTIONS
        is_other = action.dest not in _SHARED_OPTIONS and for_files != of_files
        if is_other and getattr(options, action.dest) != action.default:
            raise InputError(f"{action.option_strings[-1]} requires {needed}")
    for finding in options.fail_on:
        require(finding in finds, f"--fail-on {finding} requires {needed}")


def check_only_over(options: argparse.Namespace) -> None:
    for name in ("file", "seed", "workers", "csv"):
        is_missing = getattr(options, name, None) is None
        require(is_missing, f"--{name} requires --over NAME=VALUE,VALUE")


def check_baseline(options: argparse.Namespace, statements: Mapping[str, str]) -> None:
    if options.baseline is not None:
        check_one_of("--baseline", options.baseline, statements)


def compare_statements(
    statements: Mapping[str, str], options: argparse.Namespace, namespace: dict[str, Any]
) -> Comparison:
    compared: Comparison = compare(
        snippet.candidates_of(statements, options, namespace),
        baseline=options.baseline,
        check=_check(options),
        control=options.control,
        interference=options.interference,
        **timing_options(options),
    )
    return compared


def _check(options: argparse.Namespace) -> Check | None:
    return None if options.check == "none" else options.check


def table_of(
    statements: Mapping[str, str],
    options: argparse.Namespace,
    namespace: Mapping[str, Any] | None,
) -> ComparisonTable:
    """Compare statements over the axes of a command line, each point with its own setup.

    Args:
        statements: code by name.
        options: a parsed command line, with :func:`add_options`.
        namespace: variables of statements, of the setup and of the axes' values; None for those of
            a command.

    Raises:
        InputError: an axis or an option does not fit.
    """
    require(len(statements) > 1, "--over needs at least two statements; convtime sweep times one")
    require(
        namespace is None or options.workers is None,
        "--workers cannot be used here, because processes do not have the variables of this "
        "session; use convtime.compare(..., executor=) with functions of a module",
    )
    variables = namespace
    if variables is None:
        variables = snippet.fresh_namespace(resolve_device(options.device))
    axes = read_axes(
        {
            axis: option_values(text)
            if axis in AXIS_OPTIONS
            else python_values(axis, text, variables)
            for axis, text in axis_texts(options.over, "--over").items()
        },
        {"margin": _MARGIN} | timing_options(options),
        "compare",
    )
    return comparing.run(
        applications_of(statements, options, axes, namespace),
        axes,
        options.baseline or next(iter(statements)),
        _check(options),
        {"control": options.control, "interference": options.interference},
        file=options.file,
        seed=options.seed,
        executor=options.workers,
    )


def _run_over(options: argparse.Namespace, statements: Mapping[str, str]) -> int:
    require(
        not options.confirm,
        "--confirm cannot be used with --over, because a fresh process does not have the "
        "variables of a statement; leave out --confirm",
    )
    device = resolve_device(options.device)
    with resume_hint(options):
        table = table_of(statements, options, None)
    code, why = judge(table.findings, options)
    deliver_table(options, table, device, why)
    return code


def _confirmation(options: argparse.Namespace) -> Mapping[str, Ratio]:
    """Run the same statements in a fresh process, and return its ratios."""
    same = argparse.Namespace(**{**vars(options), "check": "none", "interference": False})
    try:
        return confirm_ratios(job(_compared_again, same), options.budget or Options().budget)
    except RuntimeError as error:
        raise InputError(f"--confirm: {error}") from error


def _compared_again(options: argparse.Namespace) -> Comparison:
    with snippet.prepare(options) as (namespace, _):
        return compare_statements(snippet.named_statements(options), options, namespace)


def _files_of(given: Sequence[str]) -> tuple[Path, Path] | None:
    """Return the two files that are given instead of statements; None if they are statements.

    Raises:
        InputError: some are files of results, but not all, or not two.
    """
    files = [text for text in given if _is_result_file(Path(text))]
    if not files:
        return None
    require(
        len(given) == len(files) == 2,
        "compare takes either statements or two files of results; of its arguments, these are "
        f"files of results: {', '.join(files)}",
    )
    return Path(files[0]), Path(files[1])


def _is_result_file(path: Path) -> bool:
    """Return whether a file exists and begins like one that :func:`read_baseline` reads."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            content = file.read(_BEGINNING).removeprefix(codecs.BOM_UTF8).lstrip()
    except (OSError, ValueError):  # the latter for a NUL in a statement
        return False
    return path.suffix.lower() == ".csv" or content.startswith((b"{", b"["))


def _run_files(options: argparse.Namespace, first: Path, second: Path) -> int:
    """Compare two files, print the changes, and return the exit code.

    Raises:
        InputError: a file cannot be read, or an option does not fit.
    """
    for what, path in (("BEFORE", first), ("AFTER", second)):
        check_distinct({what: path, "--json": options.json, "--markdown": options.markdown})
    before, after = with_names_in_common(
        read_baseline(first), read_baseline(second), str(first), str(second)
    )
    try:
        changes = compare_runs(
            before,
            after,
            margin=options.margin,
            false_discoveries=options.false_discoveries,
            same_gpu=options.same_gpu,
            relative=options.relative,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    code, why = judge(changes.findings, options)
    is_requested = "more-instructions" in options.fail_on
    unjudged = changes.unjudged_instructions if is_requested else ()
    deliver_result(
        options,
        changes.details,
        changes.to_json,
        *map(printable, unjudged),
        why,
        markdown=changes.to_markdown,
    )
    return code or (options.uncertain if unjudged else DONE)
