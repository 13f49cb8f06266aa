"""pytest-benchmark's JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import shown
from convtime.exchange.other_tools import of_samples
from convtime.timing.forms import PAYLOAD
from convtime.timing.measurement import Measurement

_TOOL = "pytest-benchmark"


@dataclasses.dataclass(frozen=True)
class _Stats:
    data: tuple[Annotated[float, msgspec.Meta(ge=0)], ...] = ()
    median: float | None = None
    iterations: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclasses.dataclass(frozen=True)
class _Benchmark:
    fullname: str
    stats: _Stats
    extra_info: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a file that convtime reads."""

    benchmarks: tuple[_Benchmark, ...]
    machine_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    commit_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    datetime: str | None = None
    version: str | None = None

    @property
    def cpu(self) -> object:
        """The CPU's name; None if it is unknown."""
        cpu = self.machine_info.get("cpu")
        return cpu.get("brand_raw") if isinstance(cpu, Mapping) else None

    @property
    def commit(self) -> str:
        """The commit; empty if it is unknown, for which pytest-benchmark writes a word."""
        commit = str(self.commit_info.get("id") or "")
        return "" if commit == "unversioned" else commit

    @property
    def tool(self) -> str:
        """The tool with its version, if it is known."""
        return f"{_TOOL} {self.version or ''}".strip()


def matches(document: Mapping[str, Any]) -> bool:
    """Return whether the JSON is pytest-benchmark's, and not another format with benchmarks."""
    return "benchmarks" in document and "machine_info" in document


def read(document: Mapping[str, Any], source: str) -> list[Measurement]:
    """Read the measurements of a run, named by the tests' full names.

    Raises:
        InputError: a benchmark has no samples.
        ValueError: a field has the wrong type.
    """
    run = codec.decode(Run, document)
    return [_measurement(benchmark, run, source) for benchmark in run.benchmarks]


def _measurement(benchmark: _Benchmark, run: Run, source: str) -> Measurement:
    if PAYLOAD in benchmark.extra_info:
        measured = Measurement.from_dict(benchmark.extra_info[PAYLOAD])
        return dataclasses.replace(measured, name=benchmark.fullname)
    stats = benchmark.stats
    require(
        stats.data,
        f"{source}: has no samples of {shown(benchmark.fullname)}, only statistics; run "
        "pytest-benchmark with --benchmark-save-data or --benchmark-json",
    )
    averaged = f"; each sample is the mean of {stats.iterations} calls"
    return of_samples(
        benchmark.fullname,
        stats.data,
        run.tool,
        {
            "cpu": run.cpu,
            "git": {"commit": run.commit or None, "dirty": run.commit_info.get("dirty")},
            "date": run.datetime,
            "machine_info": run.machine_info,
            "extra_info": benchmark.extra_info,
        },
        method_reason=f"{_TOOL} does not say{averaged if stats.iterations > 1 else ''}",
    )
