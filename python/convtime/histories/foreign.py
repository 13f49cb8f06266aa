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
        commit=str(session.commit_info.get("id") or ""),
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
    units = _asv_units(path.parent.parent / "benchmarks.json")
    times = [
        (row, kind)
        for name, values in found.results.items()
        if _is_time(name, units)
        for row in _asv_rows(name, dict(zip(found.result_columns, values, strict=False)))
    ]
    if not times:
        raise ValueError("contains no time")
    return make_run(
        date=datetime.fromtimestamp(found.date / 1e3, timezone.utc).isoformat(),
        commit=found.commit_hash,
        dirty=False,
        tool="asv",
        machine={"cpu": found.params.get("cpu"), "python": found.python or None},
        times=times,
    )


@functools.lru_cache(maxsize=8)
def _asv_units(path: Path) -> dict[str, str]:
    """Return the units of the benchmarks, as asv describes them; empty if it does not."""
    try:
        described = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        name: str(fields.get("unit"))
        for name, fields in described.items()
        if isinstance(fields, Mapping)
    }


def _is_time(name: str, units: Mapping[str, str]) -> bool:
    if name in units:
        return units[name] == "seconds"
    return name.rpartition(".")[2].startswith(("time_", "timeraw_"))


def _asv_rows(name: str, columns: Mapping[str, Any]) -> Iterator[tuple[str, float, float, float]]:
    """Yield a time for each combination of parameters; combinations that failed have none."""
    values = columns.get("result") or ()
    combinations = list(itertools.product(*columns.get("params") or ()))
    if values and len(values) != len(combinations):
        raise ValueError(
            f"{shown(name)} has {len(values)} results for {len(combinations)} combinations of "
            "parameters"
        )
    ends = (columns.get(f"stats_ci_99_{end}") or itertools.repeat(None) for end in "ab")
    for parameters, value, low, high in zip(combinations, values, *ends, strict=False):
        if isinstance(value, int | float) and math.isfinite(value):
            label = f"{name}({', '.join(map(str, parameters))})" if parameters else name
            yield (
                label,
                value,
                low if isinstance(low, int | float) else -math.inf,
                high if isinstance(high, int | float) else math.inf,
            )
