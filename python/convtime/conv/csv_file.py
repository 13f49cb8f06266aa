"""Read convolution layers from a CSV file."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from convtime.conv.problem import LARGEST_SIZE, ConvLayer, ConvProblem, distinct
from convtime.core.checks import check_whole, require
from convtime.core.errors import InputError, shown

# Columns of a CSV file: the required ones, and the optional ones, which default to 1. The number is
# the smallest allowed value.
REQUIRED_COLUMNS = {
    "w": 1, "h": 1, "c": 1, "n": 1, "k": 1, "filter_w": 1, "filter_h": 1,
    "pad_w": 0, "pad_h": 0, "stride_w": 1, "stride_h": 1,
}  # fmt: skip
OPTIONAL_COLUMNS = {"groups": 1, "dilation_w": 1, "dilation_h": 1}

# Each layer takes its --budget of time, and all samples are kept until the end.
MOST_LAYERS = 10_000


def whole_number(text: str, smallest: int = 1) -> int:
    """Parse a size that a user wrote.

    Raises:
        ValueError: It is not a whole number from smallest to LARGEST_SIZE.
    """
    # isdigit alone accepts digits of other scripts, and int() accepts "1_0" and " 1". int() also
    # rejects strings of thousands of digits.
    if text.isascii() and text.isdigit() and len(text) <= 20:
        number = int(text)
        if smallest <= number <= LARGEST_SIZE:
            return number
    raise ValueError(f"{text[:40]!r}, but must be a whole number from {smallest} to {LARGEST_SIZE}")


def from_csv(path: str | os.PathLike[str], batch: int | None = None) -> list[ConvLayer]:
    """Read layers from a CSV file with a header and the columns of DeepBench's convolutions.

    Columns, in any order: w, h, c, n, k, filter_w, filter_h, pad_w, pad_h, stride_w, stride_h;
    optional ones are name, groups, dilation_w, dilation_h. Repeated problems are kept once. At most
    MOST_LAYERS different problems are allowed.

    Args:
        path: Path of the file, in UTF-8.
        batch: Overrides column n.

    Raises:
        InputError: The file is unreadable, a line is invalid, or there are too many layers; the
            message gives the line.
    """
    if batch is not None:
        check_whole("batch", batch, 0, LARGEST_SIZE)
    path = Path(path)
    require(
        "\0" not in str(path), f"the path must not contain a null character; got {shown(str(path))}"
    )
    try:
        require(
            path.is_file() or not path.exists(),
            f"{path}: cannot be read, since it is not a regular file",
        )
        # utf-8-sig: spreadsheets often write a byte order mark before the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            layers = distinct(_read_rows(path, csv.reader(file, strict=True), batch))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not a text file in UTF-8 (byte {error.start})") from error
    require(layers, f"{path}: has a header, but no layers below it")
    return layers


def _read_rows(path: Path, reader: Any, batch: int | None) -> Iterator[ConvLayer]:
    header: list[str] = []
    problems: set[ConvProblem] = set()
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            where = f"{path}, line {reader.line_num}"
            if not any(cells):
                continue
            if not header:
                header = cells
                _check_header(where, header)
                continue
            require(
                len(cells) == len(header),
                f"{where}: has {len(cells)} values for the header's {len(header)} columns",
            )
            values = dict(zip(header, cells, strict=True))
            name = values.pop("name", "") or f"line {reader.line_num}"
            problem = _read_problem(where, name, values, batch)
            problems.add(problem)
            require(
                len(problems) <= MOST_LAYERS,
                f"{where}: is the {len(problems)}th different layer, but there may be "
                f"{MOST_LAYERS} in one file; split it",
            )
            yield ConvLayer((name,), problem)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: is not CSV ({error})") from error
    require(
        header,
        f"{path}: is empty; the first line must name the columns {','.join(REQUIRED_COLUMNS)}",
    )


def _check_header(where: str, header: Sequence[str]) -> None:
    missing = [column for column in REQUIRED_COLUMNS if column not in header]
    require(not missing, f"{where}: the header lacks column(s) {', '.join(missing)}")
    for column in header:
        require(
            column in {"name", *REQUIRED_COLUMNS, *OPTIONAL_COLUMNS},
            f"{where}: column {column!r} is unknown; the optional ones are name, "
            f"{', '.join(OPTIONAL_COLUMNS)}",
        )
        require(
            header.count(column) == 1, f"{where}: the header has column {column!r} more than once"
        )


def _read_problem(where: str, name: str, row: dict[str, str], batch: int | None) -> ConvProblem:
    number = dict.fromkeys(OPTIONAL_COLUMNS, 1)
    for column, smallest in {**REQUIRED_COLUMNS, **OPTIONAL_COLUMNS}.items():
        if column not in row:
            continue
        try:
            number[column] = whole_number(row[column], smallest)
        except ValueError as error:
            raise InputError(f"{where}: column {column} is {error}") from error
    try:
        return ConvProblem(
            batch=number["n"] if batch is None else batch,
            in_channels=number["c"],
            size=(number["h"], number["w"]),
            out_channels=number["k"],
            kernel_size=(number["filter_h"], number["filter_w"]),
            stride=(number["stride_h"], number["stride_w"]),
            padding=(number["pad_h"], number["pad_w"]),
            dilation=(number["dilation_h"], number["dilation_w"]),
            groups=number["groups"],
        )
    except InputError as error:
        raise InputError(f"{where}: layer {name}: {error}") from error
