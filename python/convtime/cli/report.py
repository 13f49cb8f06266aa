"""`convtime report`: a page of results."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from convtime.cli import arguments
from convtime.cli.output import STANDARD_OUTPUT, print_result
from convtime.core.errors import InputError
from convtime.core.files import check_distinct, check_writable, write_file
from convtime.reporting.report import page_of_results
from convtime.storage.load import load
from convtime.view.report import check_page

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
    if len({*files}) < len(files):
        raise InputError(f"each FILE must be named once, got {' '.join(map(str, files))}")
    if output != STANDARD_OUTPUT:
        check_page(output)
        for file in files:
            check_distinct({"FILE": file, "--output": output})
        check_writable(output)
    results = {title: load(file) for title, file in _titles(files).items()}
    page = page_of_results(results, _different_schemas(files))
    if output == STANDARD_OUTPUT:
        print_result(page.rstrip("\n"))
    else:
        write_file(output, page)


def _titles(files: Sequence[Path]) -> dict[str, Path]:
    """Return the files by their names, or by their paths if some have the same name."""
    by_name = {file.name: file for file in files}
    return by_name if len(by_name) == len(files) else {str(file): file for file in files}


def _different_schemas(files: Sequence[Path]) -> Iterator[str]:
    """Yield a sentence if the files were written with different schemas."""
    schemas = {}
    for file in files:
        with file.open("rb") as content:
            found = _SCHEMA.search(content.read(1000))
        schemas[file] = "another tool's" if found is None else found[1].decode()
    if len({*schemas.values()}) > 1:
        told = ", ".join(f"{file}: {schema}" for file, schema in schemas.items())
        yield (
            f"these files have different schemas, and what an older one lacks has a default: {told}"
        )
