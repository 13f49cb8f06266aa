"""Read all runs in a folder; a file that cannot be read costs a sentence, and no other run."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import InputError, one_line, shown, why
from convtime.exchange import pytest_benchmark
from convtime.exchange.files import read_measurements
from convtime.histories.run import HistoryRun, Kind, make_run, run_of


def read_runs(folder: str | os.PathLike[str]) -> tuple[list[HistoryRun], list[str]]:
    """Read the runs in a folder and the folders in it.

    Returns:
        The runs, and a sentence for each file that is not one.

    Raises:
        InputError: the folder cannot be read, or has no run.
    """
    folder = Path(folder)
    require(folder.is_dir(), f"{folder}: must be a folder with a history, got no folder")
    runs: list[HistoryRun] = []
    problems: list[str] = []
    names_by_digest: dict[bytes, str] = {}
    for path in sorted(folder.rglob("*.json")):
        name = str(path.relative_to(folder))
        try:
            content = path.read_bytes()
            original = names_by_digest.setdefault(hashlib.sha256(content).digest(), name)
            if original != name:
                problems.append(f"{name}: is a copy of {original} and counts once")
                continue
            runs.append(dataclasses.replace(_read(content, path), file=name))
        except (OSError, ValueError) as error:
            reason = why(error) if isinstance(error, OSError) else one_line(error)
            problems.append(f"{name}: is left out: {reason.removeprefix(f'{path}: ')}")
    first_problem = f" ({problems[0]})" if problems else ""
    require(
        runs,
        f"{folder}: must have a run; pytest --convtime-history={folder} adds one{first_problem}",
    )
    return runs, problems


def _read(content: bytes, path: Path) -> HistoryRun:
    """Read a file of a run.

    Raises:
        ValueError: it is not one, or is damaged.
    """
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = "empty" if not content.strip() else "not valid JSON, perhaps half-written"
        raise ValueError(f"it is {problem} ({error})") from error
    name = type(document).__name__
    require(isinstance(document, Mapping), f"it must be a JSON object, got a {name}")
    if document.get("type") == HistoryRun.__name__:
        return HistoryRun.from_dict(document)
    if pytest_benchmark.matches(document):
        return _read_pytest_benchmark(codec.decode(pytest_benchmark.Run, document), path)
    return run_of(read_measurements(path))


def _read_pytest_benchmark(run: pytest_benchmark.Run, path: Path) -> HistoryRun:
    """Read a file of pytest-benchmark; without samples, the intervals are unknown."""
    if all(benchmark.stats.data for benchmark in run.benchmarks):
        return run_of(read_measurements(path))
    medians: dict[str, float] = {}
    for benchmark in run.benchmarks:
        if benchmark.stats.median is None:
            raise InputError(f"it has neither samples nor a median of {shown(benchmark.fullname)}")
        medians[benchmark.fullname] = benchmark.stats.median
    kind = Kind(str(run.cpu or run.machine_info.get("node") or "unknown"), "pytest-benchmark")
    return make_run(
        date=run.datetime or "",
        commit=run.commit,
        dirty=run.commit_info.get("dirty"),
        tool=run.tool,
        machine={"cpu": run.cpu, "python": run.machine_info.get("python_version")},
        times=(((name, median, -math.inf, math.inf), kind) for name, median in medians.items()),
    )
