"""nvbench's JSON, and the sample files next to it."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import InputError, InputWarning, shown
from convtime.exchange.other_tools import of_samples
from convtime.timing.measurement import Measurement

_TOOL = "nvbench"
_TIMES = "nv/json/bin:nv/cold/sample_times"
_CLOCKS = "nv/json/freqs-bin:nv/cold/sample_freqs"
_WHOLE_NUMBER = re.compile("[0-9]{1,20}")


@dataclasses.dataclass(frozen=True)
class _Value:
    name: str
    value: str | int | float


@dataclasses.dataclass(frozen=True)
class _Summary:
    tag: str
    data: tuple[_Value, ...] = ()


@dataclasses.dataclass(frozen=True)
class _State:
    name: str
    device: int | None = None
    summaries: tuple[_Summary, ...] | None = ()
    is_skipped: bool = False
    skip_reason: str | None = None


@dataclasses.dataclass(frozen=True)
class _Benchmark:
    name: str
    states: tuple[_State, ...]


@dataclasses.dataclass(frozen=True)
class _Device:
    id: int
    name: str
    sm_default_clock_rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # in hertz


@dataclasses.dataclass(frozen=True)
class _Run:
    benchmarks: tuple[_Benchmark, ...]
    devices: tuple[_Device, ...] | None = ()


def matches(document: Mapping[str, Any]) -> bool:
    """Return whether the JSON is nvbench's, and not another format with benchmarks."""
    benchmarks = document.get("benchmarks")
    return isinstance(benchmarks, list) and any(
        isinstance(benchmark, Mapping) and "states" in benchmark for benchmark in benchmarks
    )


def read(document: Mapping[str, Any], path: Path) -> list[Measurement]:
    """Read the isolated ("cold") samples of each state of each benchmark.

    States that nvbench skipped are left out, with a warning that says why.

    Raises:
        InputError: a state has no samples.
        ValueError: a field has the wrong type.
    """
    run = codec.decode(_Run, document)
    devices = {device.id: device for device in run.devices or ()}
    measurements = []
    for benchmark in run.benchmarks:
        for state in benchmark.states:
            name = f"{benchmark.name} [{state.name}]"
            if state.is_skipped:
                why = shown(state.skip_reason or "no reason given")
                warnings.warn(
                    f"{path}: nvbench skipped {shown(name)}: {why}", InputWarning, stacklevel=5
                )
            else:
                measurements.append(_samples(name, state, devices, path))
    return measurements


def _samples(name: str, state: _State, devices: Mapping[int, _Device], path: Path) -> Measurement:
    seconds = _side_file(state, _TIMES, path)
    if seconds is None:
        raise InputError(
            f"{path}: has no samples of {shown(name)}, only statistics; run nvbench with "
            "--jsonbin instead of --json"
        )
    require(seconds, f"{path}: nvbench took no samples of {shown(name)}")
    clocks_hz = _side_file(state, _CLOCKS, path) or ()
    require(
        len(clocks_hz) in (0, len(seconds)),
        f"{path}: has {len(seconds)} samples and {len(clocks_hz)} clocks of {shown(name)}; "
        "their numbers must be equal",
    )
    device = None if state.device is None else devices.get(state.device)
    known: dict[str, Any] = {}
    if state.device is not None:
        known = {"device": f"cuda:{state.device}", "device_reason": "reported by nvbench"}
    if device is not None:
        known["max_sm_clock_hz"] = device.sm_default_clock_rate or None
    return of_samples(
        name,
        seconds,
        _TOOL,
        {"gpu": None if device is None else device.name},
        sm_clocks_hz=clocks_hz,
        method_reason="the samples were taken by nvbench's method for isolated calls (nv/cold)",
        **known,
    )


def _side_file(state: _State, tag: str, path: Path) -> tuple[float, ...] | None:
    """Read the 32-bit floats of a file that a summary names; None without such a summary.

    Raises:
        InputError: the file is missing, or does not match the summary.
    """
    summaries = {summary.tag: summary for summary in state.summaries or ()}
    if tag not in summaries:
        return None
    values = {entry.name: entry.value for entry in summaries[tag].data}
    written = Path(str(values.get("filename") or ""))
    # The path is relative to nvbench's working directory, and may be arbitrary. The files are in a
    # folder next to the JSON, and only that folder is searched.
    beside = path.parent / written.parent.name / written.name
    count = str(values.get("size"))
    require(
        _WHOLE_NUMBER.fullmatch(count),
        f"{path}: the size of {shown(written.name)} must be a whole number, got {shown(count)}",
    )
    relative = shown(os.path.join(written.parent.name, written.name))
    try:
        parts = {beside, beside.parent} - {path.parent}
        require(
            not any(part.is_symlink() for part in parts),
            f"{path}: its samples must not be behind a symbolic link, got a link in {relative}; "
            "replace it by a copy",
        )
        require(
            ".." not in written.parts and beside.is_file(),
            f"{path}: its samples are missing: nvbench wrote them to {relative}, which must be "
            "next to it",
        )
        size = beside.stat().st_size
        require(
            size == 4 * int(count),
            f"{beside}: must contain the {count} numbers of 4 bytes each that {path.name} "
            f"announces, got {size} bytes",
        )
        numbers = np.fromfile(beside, dtype="<f4")
    except OSError as error:
        raise InputError(
            f"{path}: {shown(written.name)} next to it cannot be read ({error.strerror})"
        ) from error
    require(
        np.isfinite(numbers).all() and (numbers >= 0).all(),
        f"{beside}: must contain finite numbers, 0 or more, got other values",
    )
    # The shortest decimal of each: 1e-05 instead of 9.999999747378752e-06.
    return tuple(float(str(number)) for number in numbers)
