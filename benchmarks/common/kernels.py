"""What calls launch, by CUPTI's records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import convtime
from convtime.timing.activity import DeviceActivity

_ROUNDS = 2
_MOST_LETTERS = 120


def record(calls: Mapping[str, Callable[[], object]]) -> dict[str, tuple[DeviceActivity, ...]]:
    """What the device does for each call, after a first one that is not recorded."""
    compared = convtime.compare(
        calls,
        method="kernel",
        check=None,
        interference=False,
        warmup=1,
        stop="count",
        min_samples=_ROUNDS,
        max_samples=_ROUNDS,
        budget=60.0,
        placement="as-is",
        regime="as-is",
    )
    return {name: measurement.activities for name, measurement in compared.measurements.items()}


def launches(activities: Sequence[DeviceActivity]) -> list[list[Any]]:
    """Ready for JSON: [name, grid, block] of each."""
    return [
        [shortened(activity.name or activity.kind), activity.grid, activity.block]
        for activity in activities
    ]


def shortened(name: str) -> str:
    """A kernel's name without the end of one that is mostly the parameters of templates."""
    return name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 1] + "…"
