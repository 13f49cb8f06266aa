"""Histories of runs that are written by hand."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from convtime.core import codec
from convtime.histories.run import Kind, make_run

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
GPU = Kind("NVIDIA H100", "method kernel, cache cold")


def noise(seed: int, count: int, deviation: float = 0.015) -> Any:
    return deviation * np.random.default_rng(seed).normal(size=count)


def write_run(folder: Path, number: int, times: dict[str, float], **changes: Any) -> Path:
    """Write a run as the plugin does, with chosen values of its fields."""
    kind = changes.pop("kind", GPU)
    run = make_run(
        date=changes.pop("date", (BEGIN + timedelta(hours=number)).isoformat()),
        commit=changes.pop("commit", f"{number:040x}"),
        dirty=changes.pop("dirty", False),
        tool="convtime",
        machine=changes.pop("machine", {"torch": "2.11"}),
        times=[((name, value, 0.99 * value, 1.01 * value), kind) for name, value in times.items()],
    )
    path = folder / f"{changes.pop('name', number)}.json"
    path.write_text(codec.to_json(run.to_dict()), encoding="utf-8")
    assert not changes
    return path


def write_runs(folder: Path, count: int, step: float = 1.0, at: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    values = 1e-5 * np.exp(noise(1, count))
    for number, value in enumerate(values):
        write_run(folder, number, {"test_a": float(value * (step if number >= at else 1))})
    return folder
