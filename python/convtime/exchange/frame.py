"""Read measurements from rows of samples: a data frame or a CSV file."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.checks import require
from convtime.core.errors import InputError, shown
from convtime.exchange.other_tools import measurements_by_name, of_samples
from convtime.timing.forms import UNKNOWN
from convtime.timing.measurement import CONDITIONS, SAMPLE_COLUMNS, Measurement, Measurements

if TYPE_CHECKING:
    import pandas

_NEEDED = ("name", "seconds")


def read_csv(text: str, source: str) -> Measurements:
    """Read measurements from CSV with the columns of Measurement.to_frame.

    Raises:
        InputError: a line cannot be read; the message says which line and why.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        _check_columns(reader.fieldnames or (), source)
        return _read(_complete_rows(reader, source), source, "a CSV file")
    except csv.Error as error:
        raise InputError(f"{source}: line {reader.line_num} is not valid CSV ({error})") from error


def read_frame(frame: pandas.DataFrame) -> Measurements:
    """Read measurements from a data frame with all or some columns of Measurement.to_frame.

    Raises:
        InputError: a row cannot be read; the message says which row and why.
    """
    source = "the data frame"
    _check_columns(list(frame.columns), source)
    present = frame.astype(object).where(frame.notna(), None)
    return _read(present.to_dict("records"), source, "a data frame")


def _check_columns(columns: Sequence[Any], source: str) -> None:
    repeated = [column for index, column in enumerate(columns) if column in columns[:index]]
    if repeated:
        raise InputError(
            f"{source}: has the column {shown(str(repeated[0]))} more than once; column names must "
            "be unique"
        )


def _complete_rows(reader: csv.DictReader[str], source: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows, and check that each has one cell per column."""
    for row in reader:
        if reader.restkey in row:
            raise InputError(
                f"{source}: line {reader.line_num} must have one cell per column, got more; write "
                "numbers with a decimal point, and quotes around a name with a comma"
            )
        if None in row.values():
            raise InputError(
                f"{source}: line {reader.line_num} must have one cell per column, got fewer; leave "
                "the cell of an unknown value empty"
            )
        yield row


def _read(rows: Iterable[Mapping[Any, Any]], source: str, tool: str) -> Measurements:
    rows_by_name: dict[str, list[dict[Any, Any]]] = {}
    for number, cells in enumerate(rows, 1):
        where = f"{source}: sample {number}"
        row = {column: cell for column, cell in cells.items() if cell not in (None, "")}
        missing = [column for column in _NEEDED if column not in row]
        if missing:
            raise InputError(
                f"{where} has no {' and no '.join(missing)}; the required columns are "
                f"{' and '.join(_NEEDED)}, the optional ones are {', '.join(SAMPLE_COLUMNS[1:])}"
            )
        for column in ("seconds", "sm_clock_hz"):
            if column in row:
                row[column] = _number(row, column, where)
        discarded = str(row.get("discarded", False))
        if discarded not in ("True", "False"):
            raise InputError(f"{where}: discarded must be True or False, got {shown(discarded)}")
        row["discarded"] = discarded == "True"
        rows_by_name.setdefault(str(row["name"]), []).append(row)
    return measurements_by_name(
        [_measurement(name, own, source, tool) for name, own in rows_by_name.items()], source
    )


def _measurement(
    name: str, rows: Sequence[Mapping[Any, Any]], source: str, tool: str
) -> Measurement:
    counting = [row for row in rows if not row["discarded"]]
    require(counting, f"{source}: all samples of {shown(name)} are discarded; keep at least one")
    clocks_hz = tuple(row.get("sm_clock_hz") for row in counting)
    gpu = _common(rows, "gpu", source, name)
    return of_samples(
        name,
        [row["seconds"] for row in counting],
        tool,
        {} if gpu is None else {"gpu": gpu},
        discarded=tuple(row["seconds"] for row in rows if row["discarded"]),
        sm_clocks_hz=() if set(clocks_hz) == {None} else clocks_hz,
        **{
            condition: _common(rows, condition, source, name) or UNKNOWN
            for condition in (*CONDITIONS, "device")
        },
    )


def _common(rows: Sequence[Mapping[Any, Any]], column: str, source: str, name: str) -> str | None:
    """Return a column's common value for all samples of a name; None if it is absent."""
    values = {str(row[column]) if column in row else None for row in rows}
    require(
        len(values) == 1,
        f"{source}: the samples of {shown(name)} must have the same {column}, got more than "
        f"one {column}; give the samples of each a different name",
    )
    return values.pop()


def _number(row: Mapping[Any, Any], column: str, where: str) -> float:
    try:
        number = float(row[column])
    except (TypeError, ValueError):
        number = math.nan
    except OverflowError as error:
        raise InputError(
            f"{where}: {column} must be at most {sys.float_info.max:.1e}, got a larger number"
        ) from error
    if not math.isfinite(number):
        raise InputError(f"{where}: {column} must be a number, got {shown(str(row[column]))}")
    return number
