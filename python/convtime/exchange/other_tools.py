"""Measurements of other tools, which report little more than the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convtime.core.checks import require
from convtime.core.errors import shown
from convtime.timing.forms import UNKNOWN
from convtime.timing.measurement import CONDITIONS, Condition, Measurement, Measurements


def of_samples(
    name: str, seconds: Sequence[float], tool: str, provenance: Mapping[str, Any], **known: Any
) -> Measurement:
    """Build a measurement whose fields are ``unknown`` if they are not passed.

    Args:
        name: name of the measurement.
        seconds: the samples, in seconds.
        tool: the tool whose format was read.
        provenance: the tool's data about machine and source.
        known: other known fields of the measurement; of a condition, its used value, and
            ``<condition>_reason``.
    """
    silent = f"{tool} does not say"
    for condition in CONDITIONS:
        reason = known.pop(f"{condition}_reason", silent)
        known[condition] = Condition(known.get(condition, UNKNOWN), UNKNOWN, reason)
    return Measurement(
        name=name,
        seconds=tuple(seconds),
        provenance={"tool": tool, **provenance},
        **{
            "exclusive": Condition(False, False, silent),
            "conditions_reason": silent,
            "device_reason": silent,
            **dict.fromkeys(
                ("clocks", "device", "warmup_requested", "stop", "stop_reason"), UNKNOWN
            ),
            **known,
        },
    )


def measurements_by_name(measurements: Sequence[Measurement], source: str) -> Measurements:
    """Return the measurements by name.

    Raises:
        InputError: two measurements have the same name, or there are none.
    """
    by_name: dict[str, Measurement] = {}
    for measured in measurements:
        require(
            measured.name not in by_name,
            f"{source}: has two measurements with the name {shown(measured.name)}; names must "
            "be unique",
        )
        by_name[measured.name] = measured
    require(by_name, f"{source}: contains no measurement")
    return Measurements(by_name)
