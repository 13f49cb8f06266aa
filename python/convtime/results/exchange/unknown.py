"""Measurements of which another tool says little more than the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convtime.core.errors import InputError, shown
from convtime.results.forms import CONDITIONS
from convtime.results.measurement import Measurement

UNKNOWN = "unknown"


def of_samples(
    name: str, seconds: Sequence[float], tool: str, provenance: Mapping[str, Any], **known: Any
) -> Measurement:
    """A measurement that is ``unknown`` in all that is not passed.

    Args:
        name: what was measured.
        seconds: the samples.
        tool: whose form they were in.
        provenance: what it says of machine and source.
        known: further fields of the measurement.
    """
    silent = f"{tool} does not say"
    fields: dict[str, Any] = {}
    for condition in CONDITIONS:
        fields[condition] = UNKNOWN
        fields[f"{condition}_reason"] = silent
        if condition != "device":
            fields[f"{condition}_requested"] = UNKNOWN
    return Measurement(
        name=name,
        seconds=tuple(seconds),
        provenance={"tool": tool, **provenance},
        **fields
        | {
            "discarded": (),
            "overhead": 0.0,
            "raw_seconds": (),
            "activities": (),
            "sm_clocks_hz": (),
            "max_sm_clock_hz": None,
            "metric": UNKNOWN,
            "metric_requested": UNKNOWN,
            "clocks": UNKNOWN,
            "conditions": (),
            "conditions_reason": silent,
            "pin": None,
            "stream": None,
            "warmup_requested": UNKNOWN,
            "steady": None,
            "warmup_calls": None,
            "warmup_seconds": None,
            "first_call_seconds": None,
            "sampling_seconds": None,
            "idle_seconds": None,
            "stop": UNKNOWN,
            "stop_reason": UNKNOWN,
        }
        | known,
    )


def named(measurements: Sequence[Measurement], source: str) -> dict[str, Measurement]:
    """Measurements by their names.

    Raises:
        InputError: two have the same, or there are none.
    """
    found: dict[str, Measurement] = {}
    for measured in measurements:
        if measured.name in found:
            raise InputError(
                f"{source}: has two measurements of the name {shown(measured.name)}, and each must "
                "have a name of its own"
            )
        found[measured.name] = measured
    if not found:
        raise InputError(f"{source}: has no measurement in it")
    return found
