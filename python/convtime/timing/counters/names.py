"""Which metrics are meant by the names that a user gives."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from convtime.core.errors import InputError
from convtime.timing.counters.groups import DESCRIPTIONS, DURATION, GROUPS
from convtime.timing.counters.nvprof import NVPROF

ALL: Final = "all"
_NEAREST = 5

# They count links of the whole device, which CUPTI does not do for one kernel.
_DEVICE_UNITS = frozenset({"c2clink", "ctc", "nvlrx", "nvltx", "pcie"})


class Chip(Protocol):
    """What a GPU can count."""

    @property
    def name(self) -> str:
        """For sentences, e.g. "cuda:0"."""

    def metrics(self) -> Sequence[str]:
        """All of its metrics, each with its usual suffix."""

    def describe(self, names: Sequence[str]) -> Sequence[tuple[str, str, str] | None]:
        """For each, description, unit and the part of the hardware; None for what it lacks."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is to be counted.

    Attributes:
        metrics: by NVIDIA's names, each once; the duration first.
        translated: by the names of nvprof's that were asked for, metrics and what each counts for.
        left_out: metrics of groups that the GPU does not have, and why.
    """

    metrics: tuple[str, ...]
    translated: dict[str, dict[str, float]]
    left_out: dict[str, str]


def split_names(asked: object) -> tuple[str, ...]:
    """The names that are asked for: of one text, where they may have commas between them, or more.

    Raises:
        TypeError: for something else than text.
        InputError: for none, and for what can be no name of a metric.
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
    known = (*GROUPS, ALL, *NVPROF)
    for name in names:
        if name not in known and "__" not in name:
            raise InputError(_unknown(name, known))
    return tuple(names)


def resolve(asked: Iterable[str], chip: Chip) -> Wanted:
    """The metrics that names mean on a GPU.

    Raises:
        InputError: for a metric that the GPU does not have, with the nearest ones.
    """
    metrics: dict[str, None] = {DURATION: None}
    translated: dict[str, dict[str, float]] = {}
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
        elif name in NVPROF:
            translated[name] = _translate(name, chip)
            metrics.update(dict.fromkeys(translated[name]))
        else:
            metrics[_of_chip(name, chip)] = None
    return Wanted(tuple(metrics), translated, left_out)


def countable(metrics: Iterable[str]) -> list[str]:
    """Of all metrics, those that the hardware counts for one kernel.

    Those of ``sass`` are counted by changing the kernel's code, and those with a dot in the first
    part of their names are other tools' copies of what there is already.
    """
    return [
        metric
        for metric in metrics
        if "_sass_" not in metric
        and _unit(metric) not in _DEVICE_UNITS
        and "." not in _unit(metric)
    ]


def describe(metrics: Sequence[str], chip: Chip) -> dict[str, tuple[str, str, float]]:
    """Of each metric a description, its unit, and what makes that unit of CUPTI's."""
    told = {}
    for metric, known in zip(metrics, chip.describe(metrics), strict=True):
        description, unit, _ = known or ("", "", "")
        told[metric] = (DESCRIPTIONS.get(metric, description), *_si(unit))
    return told


def _si(unit: str) -> tuple[str, float]:
    """A unit of CUPTI's as it is shown, and the factor between the two."""
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


def _first_known(names: Sequence[str], chip: Chip) -> str | None:
    described = chip.describe(names)
    return next((name for name, known in zip(names, described, strict=True) if known), None)


def _translate(name: str, chip: Chip) -> dict[str, float]:
    terms: Mapping[str, float] = NVPROF[name]
    metrics = [*terms]
    for metric, known in zip(metrics, chip.describe(metrics), strict=True):
        if known is None:
            raise InputError(
                f"nvprof's {name!r} is {metric} today, which {chip.name} does not count; leave it "
                "out"
            )
    return dict(terms)


def _of_chip(name: str, chip: Chip) -> str:
    if _unit(name) in _DEVICE_UNITS:
        raise InputError(
            f"{name!r} counts a link of the whole device, which cannot be told for one kernel; "
            "leave it out"
        )
    (known,) = chip.describe([name])
    every = chip.metrics()
    if known is None:
        raise InputError(_unknown(name, (*every, *GROUPS, *NVPROF), of=f" on {chip.name}"))
    # Without a suffix, CUPTI describes it, and does not count it.
    usual = next((metric for metric in every if metric.startswith(f"{name}.")), name)
    return name if "." in name else usual


def _unknown(name: str, known: Iterable[str], *, of: str = "") -> str:
    nearest = difflib.get_close_matches(name, [*known], n=_NEAREST, cutoff=0.5)
    offered = f"did you mean {', '.join(nearest)}?" if nearest else "see convtime.counter_names()"
    return f"there is no metric or group {name!r}{of}; {offered}"
