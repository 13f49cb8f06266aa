"""Measurements of stored runs, by hand and drawn with known changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from convtime.timing.measurement import HostReading, Measurement
from tests.helpers.measurements import changed
from tests.helpers.traces import measurement, trace

PROVENANCE: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "gpu_uuid": "GPU-1",
    "driver": "580.1",
    "torch": "2.15.0",
    "cpu": "a CPU",
    "load_average": 1.0,
    "git": {"commit": "a" * 40, "dirty": False},
}
OTHER_COMMIT = {"git": {"commit": "b" * 40, "dirty": False}}
ON_CPU: dict[str, Any] = {"device": "cpu", "method": "cpu"}
BASE = dataclasses.replace(measurement(trace("the same")), sm_clocks_hz=(), device="cuda:0")


def of(seconds: Any, provenance: Mapping[str, Any] = PROVENANCE, **fields: Any) -> Measurement:
    """A measurement with these samples."""
    seconds = tuple(map(float, seconds))
    return changed(BASE, **{"seconds": seconds, "provenance": provenance, **fields})


def noisy(rng: np.random.Generator, median: float = 1e-5, count: int = 200) -> Measurement:
    """Samples with a noise of 2 %."""
    return of(median * (1 + 0.02 * rng.standard_normal(count)))


def process(
    rng: np.random.Generator, median: float = 1e-5, spread: float = 0.004, **fields: Any
) -> Measurement:
    """A fresh process's measurement: its median is off by a share of its own."""
    own = median * (1 + spread * rng.standard_normal())
    return of(own * (1 + 0.005 * rng.standard_normal(200)), **fields)


def shared_cpu(rng: np.random.Generator, speed: float, factor: float) -> dict[str, Measurement]:
    """A baseline and a call by turns, while the clock that slows both down ranges widely."""
    clock = speed * rng.lognormal(0, 0.1, 200)
    own = {"baseline": 1e-4, "call": factor * 2e-4}
    return {
        name: of(
            seconds * clock * rng.lognormal(0, 0.01, 200),
            PROVENANCE | ({"baseline": "baseline"} if name == "call" else {}),
            **ON_CPU,
        )
        for name, seconds in own.items()
    }


def counting(instructions: float | None, threads: float = 1, **fields: Any) -> Measurement:
    """Calls on the CPU, 60 of them, that take the same time whatever they execute."""
    each = None if instructions is None else 60 * instructions
    reading = HostReading(60, 0.06, 0.06, threads=threads, instructions=each)
    seconds = 1e-3 * (1 + 0.005 * np.random.default_rng(0).standard_normal(60))
    return of(seconds, **{**ON_CPU, "host": (reading,)} | fields)
