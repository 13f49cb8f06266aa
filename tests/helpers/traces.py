"""Samples that were recorded on a GPU (tests/data/record.py)."""

from __future__ import annotations

import json
from typing import Any

from convtime.timing.measurement import Condition, Measurement
from tests.helpers import TESTS

TRACES = json.loads((TESTS / "data" / "traces.json").read_text())["traces"]


def trace(name: str, index: int = 0) -> dict[str, Any]:
    return TRACES[name][index]


def measurement(recorded: dict[str, Any]) -> Measurement:
    """With what a trace leaves out, and these tests do not look at."""
    count = len(recorded["seconds"])
    fields = {**recorded, "seconds": tuple(recorded["seconds"])}
    for name in ("method", "metric", "queue", "cache", "placement", "pages", "regime"):
        used = recorded.get(name, "elapsed" if name == "metric" else "as-is")
        fields[name] = Condition(used, used)
    return Measurement(
        **fields,
        exclusive=Condition(False, False),
        clocks="observe",
        device="",
        device_reason="",
        discarded=(),
        activities=(),
        stream=0,
        warmup_requested=1,
        steady=None,
        warmup_calls=1,
        warmup_seconds=0.0,
        first_call_seconds=0.0,
        sampling_seconds=1e-4 * count,
        idle_seconds=0.0,
        stop="count",
        stop_reason="max_samples",
        flops=None,
        nbytes=None,
        ceilings=None,
        provenance={},
    )
