"""Read all runs in a folder; a file that cannot be read costs a sentence, and no other run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from convtime.core.errors import InputError, one_line, shown, why
from convtime.exchange import pytest_benchmark
from convtime.exchange.files import read_measurements
from convtime.histories import foreign
from convtime.histories.run import HistoryRun, moment, rows_of, run_of


def read_runs(folder: str | os.PathLike[str]) -> tuple[list[HistoryRun], list[str]]:
    """Read the runs in a folder and the folders in it.

    Returns:
        The runs, and a sentence for each file that is not one.

    Raises:
        InputError: the folder cannot be read, or has no run.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: must be a folder with a history, got no folder")
    runs: list[HistoryRun] = []
    problems: list[str] = []
    known: dict[bytes, str] = {}  # digest of a file: its name
    for path in sorted(folder.rglob("*.json")):
        if foreign.is_description(path):
            continue
        name = str(path.relative_to(folder))
        try:
            content = path.read_bytes()
            original = known.setdefault(hashlib.sha256(content).digest(), name)
            if original != name:
                problems.append(f"{name}: is a copy of {original} and counts once")
                continue
            runs.append(_read(content, path, name))
        except (OSError, ValueError) as error:
            said = why(error) if isinstance(error, OSError) else one_line(error)
            problems.append(f"{name}: is left out: {said.removeprefix(f'{path}: ')}")
    if not runs:
        told = f" ({problems[0]})" if problems else ""
        raise InputError(
            f"{folder}: must have a run; pytest --convtime-history={folder} adds one{told}"
        )
    return runs, problems


def _read(content: bytes, path: Path, name: str) -> HistoryRun:
    """Read a file of a run.

    Raises:
        ValueError: it is not one, or is damaged.
    """
    document = _decoded(content)
    if not isinstance(document, Mapping):
        raise ValueError(f"it must be a JSON object, got a {type(document).__name__}")
    run = _run_in(document, path)
    _check(run)
    return HistoryRun(**{**vars(run), "file": name})


def _decoded(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(content)  # reads NaN, which asv writes for skipped benchmarks
            if isinstance(document, Mapping) and foreign.is_asv(document):
                return document
        what = "empty" if not content.strip() else "not valid JSON, perhaps half-written"
        raise ValueError(f"it is {what} ({error})") from error


def _run_in(document: Mapping[str, Any], path: Path) -> HistoryRun:
    if document.get("type") == HistoryRun.__name__:
        return HistoryRun.from_dict(document)
    if foreign.is_asv(document):
        return foreign.read_asv(document, path)
    if pytest_benchmark.is_one(document):
        return foreign.read_pytest_benchmark(document, str(path))
    measurements = read_measurements(path)
    if not measurements:
        raise ValueError("it contains no measurement")
    return run_of(measurements)


def _check(run: HistoryRun) -> None:
    try:
        moment(run.date)
    except ValueError as error:
        raise ValueError(f"its date must be in ISO 8601, got {shown(run.date)}") from error
    for _ in rows_of(run):  # raises for a kind that is missing
        pass
