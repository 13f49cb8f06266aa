"""Measurements out of rows of samples: a data frame's, or those of a CSV file."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.errors import InputError, shown
from convtime.results.exchange.unknown import UNKNOWN, named, of_samples
from convtime.results.forms import COLUMNS, CONDITIONS
from convtime.results.measurement import Measurement

if TYPE_CHECKING:
    import pandas

_NEEDED = ("name", "seconds")


def read_csv(text: str, source: str) -> dict[str, Measurement]:
    """Measurements out of CSV with the columns of Measurement.to_frame.

    Raises:
        InputError: says which line cannot be read, and why.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        _check_columns(reader.fieldnames or (), source)
        return _read(_whole(reader, source), source, "a CSV file")
    except csv.Error as error:
        raise InputError(f"{source}: line {reader.line_num} is no CSV ({error})") from error


def read_frame(frame: pandas.DataFrame) -> dict[str, Measurement]:
    """Measurements out of a data frame with the columns of Measurement.to_frame, or some of them.

    Raises:
        InputError: says which row cannot be read, and why.
    """
    source = "the data frame"
    _check_columns(list(frame.columns), source)
    present = frame.astype(object).where(frame.notna(), None)
    return _read(present.to_dict("records"), source, "a data frame")


def _check_columns(columns: Sequence[Any], source: str) -> None:
    repeated = [column for place, column in enumerate(columns) if column in columns[:place]]
    if repeated:
        raise InputError(
            f"{source}: has the column {shown(str(repeated[0]))} more than once, and must have it "
            "once"
        )


def _whole(reader: csv.DictReader[str], source: str) -> Iterator[Mapping[str, Any]]:
    """Its rows, each of which has a cell for each column."""
    for row in reader:
        if reader.restkey in row:
            raise InputError(
                f"{source}: line {reader.line_num} must have a cell for each of the columns, and "
                "has more; write numbers with a point, and quotes around a name with a comma"
            )
        if None in row.values():
            raise InputError(
                f"{source}: line {reader.line_num} must have a cell for each of the columns, and "
                "has fewer; write an empty cell for what is not known"
            )
        yield row


def _read(rows: Iterable[Mapping[Any, Any]], source: str, tool: str) -> dict[str, Measurement]:
    rows_by_name: dict[str, list[Mapping[Any, Any]]] = {}
    for number, row in enumerate(rows, 1):
        where = f"{source}: sample {number}"
        missing = [column for column in _NEEDED if _absent(row.get(column))]
        if missing:
            raise InputError(
                f"{where} has no {' and no '.join(missing)}; there must be the columns "
                f"{' and '.join(_NEEDED)}, and there may be {', '.join(COLUMNS[1:])}"
            )
        checked = {**row, "seconds": _number(row, "seconds", where), "discarded": _flag(row, where)}
        if not _absent(row.get("sm_clock_hz")):
            checked["sm_clock_hz"] = _number(row, "sm_clock_hz", where)
        rows_by_name.setdefault(str(row["name"]), []).append(checked)
    return named(
        [_measurement(name, found, source, tool) for name, found in rows_by_name.items()], source
    )


def _measurement(name: str, rows: list[Mapping[Any, Any]], source: str, tool: str) -> Measurement:
    kept = [row for row in rows if not row["discarded"]]
    if not kept:
        raise InputError(f"{source}: all samples of {shown(name)} are discarded ones")
    clocks_hz = tuple(
        None if _absent(row.get("sm_clock_hz")) else float(row["sm_clock_hz"]) for row in kept
    )
    gpu = _common(rows, "gpu", source, name)
    return of_samples(
        name,
        [row["seconds"] for row in kept],
        tool,
        {} if gpu is None else {"gpu": gpu},
        discarded=tuple(row["seconds"] for row in rows if row["discarded"]),
        sm_clocks_hz=() if set(clocks_hz) == {None} else clocks_hz,
        **{
            condition: _common(rows, condition, source, name) or UNKNOWN for condition in CONDITIONS
        },
    )


def _common(rows: list[Mapping[Any, Any]], column: str, source: str, name: str) -> str | None:
    """What a column says of all samples of a name; None where it is not there."""
    found = {None if _absent(row.get(column)) else str(row[column]) for row in rows}
    if len(found) > 1:
        raise InputError(
            f"{source}: the samples of {shown(name)} are of more than one {column}, and must be of "
            "one; give those of each a name of its own"
        )
    return found.pop()


def _number(row: Mapping[Any, Any], column: str, where: str) -> float:
    try:
        number = float(row[column])
    except (TypeError, ValueError):
        number = math.nan
    except OverflowError as error:
        raise InputError(
            f"{where}: {column} must be at most {sys.float_info.max:.1e}, and is more"
        ) from error
    if not math.isfinite(number):
        raise InputError(f"{where}: {column} must be a number, got {shown(str(row[column]))}")
    return number


def _flag(row: Mapping[Any, Any], where: str) -> bool:
    text = "False" if _absent(row.get("discarded")) else str(row["discarded"])
    if text not in ("True", "False"):
        raise InputError(f"{where}: discarded must be True or False, got {shown(text)}")
    return text == "True"


def _absent(value: object) -> bool:
    """Whether there is nothing in a cell."""
    return value is None or value == ""
