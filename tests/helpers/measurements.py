"""A measurement by hand; tests change what they are about."""

from __future__ import annotations

import dataclasses
from typing import Any

from convtime.timing.activity import DeviceActivity
from convtime.timing.measurement import Condition, Measurement

CONDITIONS = ("method", "metric", "queue", "cache", "placement", "pages", "regime", "exclusive")


def changed(measured: Measurement, **fields: Any) -> Measurement:
    """Change fields; ``cache``, ``cache_requested`` and ``cache_reason`` are parts of one."""
    for name in CONDITIONS:
        parts = {
            part: fields.pop(key)
            for part, key in (
                ("used", name),
                ("requested", f"{name}_requested"),
                ("reason", f"{name}_reason"),
            )
            if key in fields and not isinstance(fields[key], Condition)
        }
        if parts:
            fields[name] = dataclasses.replace(getattr(measured, name), **parts)
    return dataclasses.replace(measured, **fields)


def make(**changes: Any) -> Measurement:
    measurement = Measurement(
        name="relu",
        seconds=(4e-6, 1e-6, 3e-6, 2e-6),
        discarded=(9e-6,),
        overhead=0.0,
        raw_seconds=(),
        metric=Condition("elapsed", "busy"),
        busy_seconds=(4e-6, 1e-6, 3e-6, 2e-6),
        span_seconds=(5e-6, 2e-6, 4e-6, 3e-6),
        sum_seconds=(4e-6, 1e-6, 3e-6, 2e-6),
        activities=(
            DeviceActivity(
                kind="kernel",
                name="relu_kernel",
                grid=(4, 1, 1),
                block=(128, 1, 1),
                registers_per_thread=16,
                shared_memory_bytes=0,
                bytes=0,
                seconds=(4e-6, 1e-6, None, 2e-6),
            ),
        ),
        method=Condition("event", "auto", "the work is on a GPU"),
        queue=Condition("sleep", "sleep"),
        cache=Condition("cold", "cold"),
        placement=Condition("as-is", "as-is"),
        pages=Condition("as-is", "as-is"),
        regime=Condition("as-is", "as-is"),
        exclusive=Condition(False, False),
        clocks="observe",
        conditions=(),
        conditions_reason="",
        pin=None,
        device="cuda:0",
        device_reason="a tensor on it was found",
        stream=0,
        sm_clocks_hz=(1.98e9, None, 1.5e9, 1.95e9),
        max_sm_clock_hz=1.98e9,
        warmup_requested="steady",
        steady=True,
        warmup_calls=3,
        warmup_seconds=0.1,
        first_call_seconds=0.05,
        sampling_seconds=0.2,
        idle_seconds=0.0,
        stop="interval",
        stop_reason="settled",
        flops=None,
        nbytes=None,
        ceilings=None,
        provenance={"gpu": "NVIDIA H200", "cpu": "x", "threads": 2},
    )
    if "seconds" in changes:
        changes = {"busy_seconds": (), "span_seconds": (), "sum_seconds": ()} | changes
    return changed(measurement, **changes)


def on_cpu(seconds: tuple[float, ...] = (1e-3,) * 30, **changes: Any) -> Measurement:
    """A measurement of work on the CPU, by hand."""
    return make(
        method="cpu",
        device="cpu",
        seconds=seconds,
        batches=(),
        busy_seconds=(),
        span_seconds=(),
        sum_seconds=(),
        activities=(),
        sm_clocks_hz=(),
        max_sm_clock_hz=None,
        **changes,
    )
