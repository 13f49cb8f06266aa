"""Resolve the metric names that a user gives."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from convtime.core.errors import InputError
from convtime.counting.groups import DESCRIPTIONS, DURATION, GROUPS

if TYPE_CHECKING:
    from convtime.counting.chip import GpuChip

ALL: Final = "all"
_NEAREST = 5

# These count links of the whole device, which CUPTI does not attribute to one kernel.
_DEVICE_UNITS = frozenset({"c2clink", "ctc", "nvlrx", "nvltx", "pcie"})


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The metrics to count.

    Attributes:
        metrics: NVIDIA's names, without duplicates; the duration first.
        left_out: metrics of groups that the GPU does not support, and why.
    """

    metrics: tuple[str, ...]
    left_out: dict[str, str]


def split_names(asked: object) -> tuple[str, ...]:
    """Split the requested names: one string, which may contain commas, or several strings.

    Raises:
        TypeError: for anything other than strings.
        InputError: if there are no names, or one cannot be the name of a metric.
    """
    given = [asked] if isinstance(asked, str) else asked
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise TypeError(f"metrics must be names, got {asked!r}")
    names: dict[str, None] = {}
    for text in given:
        if not isinstance(text, str):
            raise TypeError(f"metrics must be names, got {text!r}")
        names.update(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not names:
        raise InputError(f"metrics must name at least one metric or group, got {asked!r}")
    known = (*GROUPS, ALL)
    for name in names:
        if name not in known and "__" not in name:
            raise InputError(_unknown(name, known))
    return tuple(names)


def resolve(asked: Iterable[str], chip: GpuChip) -> Wanted:
    """Return the metrics that names refer to on a GPU.

    Raises:
        InputError: for a metric that the GPU does not support; suggests similar names.
    """
    metrics: dict[str, None] = {DURATION: None}
    left_out: dict[str, str] = {}
    for name in asked:
        if name == ALL:
            metrics.update(dict.fromkeys(countable(chip.metrics())))
        elif name in GROUPS:
            for metric in GROUPS[name].metrics:
                found = _first_known(metric.names, chip)
                if found is None:
                    left_out[metric.names[0]] = f"{chip.name} does not count it"
                else:
                    metrics[found] = None
        else:
            metrics[_of_chip(name, chip)] = None
    return Wanted(tuple(metrics), left_out)


def countable(metrics: Iterable[str]) -> list[str]:
    """Return the metrics that the hardware counts for one kernel.

    Metrics of ``sass`` are counted by modifying the kernel's code. Metrics with a dot in the first
    part of their names are other tools' copies of existing metrics.
    """
    return [
        metric
        for metric in metrics
        if "_sass_" not in metric
        and _unit(metric) not in _DEVICE_UNITS
        and "." not in _unit(metric)
    ]


def describe(metrics: Sequence[str], chip: GpuChip) -> dict[str, tuple[str, str, float]]:
    """Return each metric's description, unit, and the factor from CUPTI's unit to that unit."""
    told = {}
    for metric, known in zip(metrics, chip.describe(metrics), strict=True):
        description, unit, _ = known or ("", "", "")
        told[metric] = (DESCRIPTIONS.get(metric, description), *_si(unit))
    return told


def _si(unit: str) -> tuple[str, float]:
    """Return the unit shown for a unit of CUPTI, and the factor between the two."""
    if unit == "nanosecond":
        return "s", 1e-9
    if unit == "percent":
        return "%", 1.0
    above, *below = unit.split("/")
    parts = [part.removeprefix("l2_").removeprefix("l1tex_") for part in (above, *below)]
    plain = ["cycle" if part.endswith("_cycle") else part for part in parts]
    return "/".join("s" if part == "second" else part for part in plain), 1.0


def _unit(metric: str) -> str:
    return metric.partition("__")[0]


def _first_known(names: Sequence[str], chip: GpuChip) -> str | None:
    described = chip.describe(names)
    return next((name for name, known in zip(names, described, strict=True) if known), None)


def _of_chip(name: str, chip: GpuChip) -> str:
    if _unit(name) in _DEVICE_UNITS:
        raise InputError(
            f"{name!r} counts a link of the whole device, which has no value for a single kernel; "
            "leave it out"
        )
    (known,) = chip.describe([name])
    every = chip.metrics()
    if known is None:
        raise InputError(_unknown(name, (*every, *GROUPS), of=f" on {chip.name}"))
    # CUPTI describes a metric without a suffix, but does not count it.
    usual = next((metric for metric in every if metric.startswith(f"{name}.")), name)
    return name if "." in name else usual


def _unknown(name: str, known: Iterable[str], *, of: str = "") -> str:
    nearest = difflib.get_close_matches(name, [*known], n=_NEAREST, cutoff=0.5)
    offered = f"did you mean {', '.join(nearest)}?" if nearest else "see convtime.counter_names()"
    return f"there is no metric or group {name!r}{of}; {offered}"
