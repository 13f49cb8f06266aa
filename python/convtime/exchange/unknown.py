"""Measurements of other tools, which report little more than the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convtime.core.errors import InputError, shown
from convtime.timing.forms import CONDITIONS, UNKNOWN
from convtime.timing.measurement import Measurement


def of_samples(
    name: str, seconds: Sequence[float], tool: str, provenance: Mapping[str, Any], **known: Any
) -> Measurement:
    """Build a measurement whose fields are ``unknown`` if they are not passed.

    Args:
        name: name of the measurement.
        seconds: the samples, in seconds.
        tool: the tool whose format was read.
        provenance: the tool's data about machine and source.
        known: other known fields of the measurement.
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
    """Return the measurements by name.

    Raises:
        InputError: two measurements have the same name, or there are none.
    """
    found: dict[str, Measurement] = {}
    for measured in measurements:
        if measured.name in found:
            raise InputError(
                f"{source}: has two measurements with the name {shown(measured.name)}; names must "
                "be unique"
            )
        found[measured.name] = measured
    if not found:
        raise InputError(f"{source}: contains no measurement")
    return found
