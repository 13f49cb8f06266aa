"""Runs that pytest-benchmark and asv stored."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from convtime.core import codec
from convtime.core.errors import shown
from convtime.exchange import pytest_benchmark
from convtime.exchange.unknown import named
from convtime.histories.run import HistoryRun, Kind, make_run, run_of

_ASV_DESCRIPTIONS = ("machine.json", "benchmarks.json")  # next to asv's results
_ASV_VERSION = 2


def is_description(path: Path) -> bool:
    """Return whether the file is one of asv's that has no results."""
    return path.name in _ASV_DESCRIPTIONS


@dataclasses.dataclass(frozen=True)
class _Statistics:
    median: float
    data: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Benchmark:
    fullname: str
    stats: _Statistics


@dataclasses.dataclass(frozen=True)
class _Session:
    benchmarks: tuple[_Benchmark, ...]
    datetime: str
    machine_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    commit_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    version: str = ""


def read_pytest_benchmark(document: Mapping[str, Any], source: str) -> HistoryRun:
    """Read a file of pytest-benchmark; without samples, intervals are unknown.

    Raises:
        ValueError: a field is missing or has the wrong type.
    """
    session = codec.decode(_Session, document)
    if not session.benchmarks:
        raise ValueError("contains no benchmark")
    if all(benchmark.stats.data for benchmark in session.benchmarks):
        return run_of(named(pytest_benchmark.read(document, source), source))
    cpu = session.machine_info.get("cpu")
    brand = cpu.get("brand_raw") if isinstance(cpu, Mapping) else None
    kind = Kind(str(brand or session.machine_info.get("node") or "unknown"), "pytest-benchmark")
    return make_run(
        date=session.datetime,
        commit=pytest_benchmark.commit_of(session.commit_info),
        dirty=session.commit_info.get("dirty"),
        tool=f"pytest-benchmark {session.version}".strip(),
        machine={"cpu": brand, "python": session.machine_info.get("python_version")},
        times=(
            ((benchmark.fullname, benchmark.stats.median, -math.inf, math.inf), kind)
            for benchmark in session.benchmarks
        ),
    )


@dataclasses.dataclass(frozen=True)
class _AsvResults:
    commit_hash: str
    date: int  # of the commit, in milliseconds
    env_name: str
    params: dict[str, Any]
    result_columns: tuple[str, ...]
    results: dict[str, tuple[Any, ...]]
    version: int
    python: str = ""


def is_asv(document: Mapping[str, Any]) -> bool:
    """Return whether the JSON is a file of asv's results."""
    return "result_columns" in document and "commit_hash" in document


def read_asv(document: Mapping[str, Any], path: Path) -> HistoryRun:
    """Read the times of a file of asv's results; memory and tracked values are left out.

    The intervals are asv's, at 99 %.

    Raises:
        ValueError: a field is missing or has the wrong type, or there is no time.
    """
    found = codec.decode(_AsvResults, document)
    if found.version != _ASV_VERSION:
        raise ValueError(f"has asv's results of version {found.version}, must be {_ASV_VERSION}")
    hardware = str(found.params.get("cpu") or found.params.get("machine") or "unknown")
    kind = Kind(hardware, f"asv, {found.env_name}")
    described = _asv_described(path.parent.parent / "benchmarks.json")
    times = []
    for name, values in found.results.items():
        benchmark = described.get(name, {})
        columns = dict(zip(found.result_columns, values, strict=False))
        if _is_time(name, benchmark) and _is_current(columns, benchmark):
            times += [(row, kind) for row in _asv_rows(name, columns)]
    if not times:
        raise ValueError("contains no time")
    return make_run(
        date=_date_of(found.date).isoformat(),
        commit=found.commit_hash,
        dirty=False,
        tool="asv",
        machine={"cpu": found.params.get("cpu"), "python": found.python or None},
        times=times,
    )


def _date_of(milliseconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(milliseconds / 1e3, timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"date must be in milliseconds since 1970 and before the year 10000, got {milliseconds}"
        ) from error


@functools.lru_cache(maxsize=8)
def _asv_described(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the benchmarks as asv describes them; empty if it does not."""
    try:
        described = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(described, Mapping):
        return {}
    return {name: fields for name, fields in described.items() if isinstance(fields, Mapping)}


def _is_time(name: str, benchmark: Mapping[str, Any]) -> bool:
    if "unit" in benchmark:
        return bool(benchmark["unit"] == "seconds")
    return name.rpartition(".")[2].startswith(("time_", "timeraw_"))


def _is_current(columns: Mapping[str, Any], benchmark: Mapping[str, Any]) -> bool:
    """Return whether a result is of the benchmark's present code, as asv shows only these."""
    was, now = columns.get("version"), benchmark.get("version")
    return was is None or now is None or was == now


def _asv_rows(name: str, columns: Mapping[str, Any]) -> Iterator[tuple[str, float, float, float]]:
    """Yield a time for each combination of parameters; combinations that failed have none."""
    values, parameters_of, low_ends, high_ends = (
        _list_in(columns, what, name)
        for what in ("result", "params", "stats_ci_99_a", "stats_ci_99_b")
    )
    if not all(isinstance(each, list) for each in parameters_of):
        raise ValueError(f"{shown(name)} has params that are not lists")
    combinations = list(itertools.product(*parameters_of))
    if values and len(values) != len(combinations):
        raise ValueError(
            f"{shown(name)} has {len(values)} results for {len(combinations)} combinations of "
            "parameters"
        )
    ends = (each or itertools.repeat(None) for each in (low_ends, high_ends))
    for parameters, value, low, high in zip(combinations, values, *ends, strict=False):
        if isinstance(value, int | float) and math.isfinite(value):
            label = f"{name}({', '.join(map(str, parameters))})" if parameters else name
            yield (
                label,
                value,
                low if isinstance(low, int | float) else -math.inf,
                high if isinstance(high, int | float) else math.inf,
            )


def _list_in(columns: Mapping[str, Any], what: str, name: str) -> list[Any]:
    """Return a column; empty if there is none."""
    found = columns.get(what) or []
    if not isinstance(found, list):
        raise ValueError(f"{what} of {shown(name)} must be a list, got a {type(found).__name__}")
    return found
