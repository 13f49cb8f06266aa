"""Files of other tools, by hand, and what a measurement of another tool lacks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from convtime.timing.measurement import Measurement
from tests.helpers.measurements import make as make_any


def make(**changes: Any) -> Measurement:
    """A measurement in which there is something for each sample, or nothing for any."""
    if "seconds" in changes:
        changes = {"sm_clocks_hz": (), "activities": ()} | changes
    return make_any(**changes)


def write(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def assert_says_that_nothing_is_known(one: Measurement, tool: str) -> None:
    assert {one.method, one.queue, one.cache, one.placement, one.pages, one.regime} == {"unknown"}
    assert (one.clocks, one.stop) == ("unknown", "unknown")
    assert (one.warmup_calls, one.first_call_seconds) == (None, None)
    assert tool in one.cache.reason
    assert re.search("warm-up: *unknown", one.details())
    assert Measurement.from_dict(json.loads(one.to_json())) == one


def nvbench_document(*states: dict[str, Any]) -> dict[str, Any]:
    """As nvbench's json_printer has it."""
    return {
        "meta": {"argv": ["bench"]},
        "devices": [{"id": 0, "name": "NVIDIA H200", "sm_default_clock_rate": 1980000000}],
        "benchmarks": [{"name": "copy", "devices": [0], "axes": None, "states": list(states)}],
    }


def nvbench_state(name: str, **files: tuple[str, Any]) -> dict[str, Any]:
    """A state whose ``times`` and ``clocks`` are a file's path and its number of values."""
    tags = {
        "times": "nv/json/bin:nv/cold/sample_times",
        "clocks": "nv/json/freqs-bin:nv/cold/sample_freqs",
    }
    summaries = [
        {
            "tag": tags[kind],
            "data": [
                {"name": "filename", "type": "string", "value": path},
                {"name": "size", "type": "int64", "value": str(count)},
            ],
        }
        for kind, (path, count) in files.items()
    ]
    return {"name": name, "device": 0, "summaries": summaries, "is_skipped": False}


def numbers(path: Path, *values: float) -> None:
    """Write one of nvbench's files of samples."""
    path.parent.mkdir(exist_ok=True)
    np.array(values, dtype="<f4").tofile(path)
