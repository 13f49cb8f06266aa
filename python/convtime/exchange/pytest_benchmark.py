"""pytest-benchmark's JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from convtime.core import codec
from convtime.core.errors import InputError, shown
from convtime.exchange.unknown import of_samples
from convtime.timing.forms import PAYLOAD
from convtime.timing.measurement import Measurement

_TOOL = "pytest-benchmark"


@dataclasses.dataclass(frozen=True)
class _Stats:
    data: tuple[Annotated[float, msgspec.Meta(ge=0)], ...] = ()
    iterations: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclasses.dataclass(frozen=True)
class _Benchmark:
    fullname: str
    stats: _Stats
    extra_info: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Run:
    benchmarks: tuple[_Benchmark, ...]
    machine_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    commit_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    datetime: str | None = None
    version: str | None = None


def is_one(document: Mapping[str, Any]) -> bool:
    """Return whether the JSON is pytest-benchmark's, and not another format with benchmarks."""
    return "benchmarks" in document and "machine_info" in document


def read(document: Mapping[str, Any], source: str) -> list[Measurement]:
    """Read the measurements of a run, named by the tests' full names.

    Raises:
        InputError: a benchmark has no samples.
        ValueError: a field has the wrong type.
    """
    run = codec.decode(_Run, document)
    return [_measurement(benchmark, run, source) for benchmark in run.benchmarks]


def _measurement(benchmark: _Benchmark, run: _Run, source: str) -> Measurement:
    if PAYLOAD in benchmark.extra_info:
        measured = Measurement.from_dict(benchmark.extra_info[PAYLOAD])
        return dataclasses.replace(measured, name=benchmark.fullname)
    stats = benchmark.stats
    if not stats.data:
        raise InputError(
            f"{source}: has no samples of {shown(benchmark.fullname)}, only statistics; run "
            "pytest-benchmark with --benchmark-save-data or --benchmark-json"
        )
    averaged = f"; each sample is the mean of {stats.iterations} calls"
    cpu = run.machine_info.get("cpu")
    return of_samples(
        benchmark.fullname,
        stats.data,
        f"{_TOOL} {run.version or ''}".strip(),
        {
            "cpu": cpu.get("brand_raw") if isinstance(cpu, Mapping) else None,
            "git": {
                "commit": run.commit_info.get("id"),
                "dirty": run.commit_info.get("dirty"),
            },
            "date": run.datetime,
            "machine_info": run.machine_info,
            "extra_info": benchmark.extra_info,
        },
        method_reason=f"{_TOOL} does not say{averaged if stats.iterations > 1 else ''}",
    )


def document(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Convert measurements to pytest-benchmark's JSON, which its commands can read."""
    facts = measurements[0].provenance
    git, date = facts.get("git"), facts.get("date")
    if not isinstance(git, Mapping):
        git = {}
    return {
        "machine_info": {
            "cpu": {"brand_raw": facts.get("cpu")},
            "gpu": facts.get("gpu"),
            "driver": facts.get("driver"),
            "torch": facts.get("torch"),
        },
        "commit_info": {"id": git.get("commit"), "dirty": git.get("dirty")},
        "benchmarks": [_benchmark(measured) for measured in measurements],
        "datetime": date if isinstance(date, str) else None,
        "version": "4.0.0",  # the pytest-benchmark version that introduced this format
    }


def _benchmark(measured: Measurement) -> dict[str, Any]:
    return {
        "group": None,
        "name": measured.name,
        "fullname": measured.name,
        "params": None,
        "param": None,
        "extra_info": {PAYLOAD: measured.to_dict()},
        "options": {},
        "stats": statistics_of(measured) | {"data": list(measured.seconds), "iterations": 1},
    }


def statistics_of(measured: Measurement) -> dict[str, Any]:
    """Return pytest-benchmark's statistics; its outliers are Tukey's."""
    samples = measured.seconds
    first, third = measured.quantile(0.25), measured.quantile(0.75)
    low, high = first - 1.5 * measured.iqr, third + 1.5 * measured.iqr
    within = [sample for sample in samples if low <= sample <= high]
    spread = 0.0 if len(samples) == 1 else measured.stdev
    beyond = sum(abs(sample - measured.mean) > spread for sample in samples)
    outliers = len(samples) - len(within)
    total = sum(samples)  # math.fsum raises an error if the sum is too large for a float
    return {
        "min": measured.min,
        "max": measured.max,
        "mean": measured.mean,
        "stddev": spread,
        "rounds": len(samples),
        "median": measured.median,
        "iqr": measured.iqr,
        "q1": first,
        "q3": third,
        "iqr_outliers": outliers,
        "stddev_outliers": beyond,
        "outliers": f"{beyond};{outliers}",
        "ld15iqr": min(within),
        "hd15iqr": max(within),
        "ops": len(samples) / total if total else 0.0,
        "total": total,
    }
