"""`convtime report`: a page of results."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from convtime.cli import arguments
from convtime.cli.output import STANDARD_OUTPUT, print_result
from convtime.core.checks import require
from convtime.core.files import check_distinct, check_writable, extension_of, write_file
from convtime.reporting.report import page_of_results
from convtime.storage.load import load
from convtime.view.report import PAGE_EXTENSIONS

_SCHEMA = re.compile(rb'"schema": ?"([0-9.]+)"')


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes results as a page: one HTML file, which needs no network and no server. Each FILE "
        "is any that convtime show reads; two files are also compared with each other."
    )
    parser.add_argument(
        "files", type=arguments.file_name, nargs="+", metavar="FILE", help="the results"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=arguments.file_name,
        required=True,
        metavar="FILE",
        help="the page, e.g. report.html; - prints it",
    )


def run(options: argparse.Namespace) -> None:
    files, output = options.files, options.output
    require(
        len({*files}) == len(files),
        f"each FILE must be named once, got {' '.join(map(str, files))}",
    )
    if output != STANDARD_OUTPUT:
        extension_of(output, PAGE_EXTENSIONS)
        for file in files:
            check_distinct({"FILE": file, "--output": output})
        check_writable(output)
    titles = [file.name for file in files]
    if len({*titles}) < len(titles):
        titles = [*map(str, files)]
    results = dict(zip(titles, map(load, files), strict=True))
    page = page_of_results(results, _different_schemas(files))
    if output == STANDARD_OUTPUT:
        print_result(page.rstrip("\n"))
    else:
        write_file(output, page)


def _different_schemas(files: Sequence[Path]) -> Iterator[str]:
    """Yield a sentence if the files were written with different schemas."""
    schemas = {}
    for file in files:
        with file.open("rb") as content:
            schema = _SCHEMA.search(content.read(1000))
        schemas[file] = "another tool's" if schema is None else schema[1].decode()
    if len({*schemas.values()}) > 1:
        yield (
            "these files have different schemas, and what an older one lacks has a default: "
            + ", ".join(f"{file}: {schema}" for file, schema in schemas.items())
        )
