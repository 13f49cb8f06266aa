"""Make Counters from the counts of each launch."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from convtime.counting.groups import DURATION
from convtime.counting.kernel_counters import Counters, KernelCounters
from convtime.counting.names import Wanted

#: Values of one launch, by metric.
Values: TypeAlias = dict[str, "float | None"]

_Launch: TypeAlias = tuple[str, tuple[int, int, int], tuple[int, int, int]]
_ADDING_UP = ("sum", "avg", "min", "max")


def adds_up(metric: str) -> bool:
    """Whether a metric's values are summed over launches: it is a count, not a rate or share."""
    return metric.rpartition(".")[2] in _ADDING_UP


def make_counters(
    counted: Mapping[str, Any],
    wanted: Wanted,
    described: Mapping[str, tuple[str, str, float]],
    **facts: Any,
) -> Counters:
    """Combine the counts by kernel and for the whole call.

    Args:
        counted: result of ``_C.count_kernels``.
        wanted: its metrics, in the same order.
        described: for each metric its description, unit, and the factor to that unit.
        facts: other fields of the result.
    """
    factors = [described[metric][2] for metric in wanted.metrics]
    repeats = [
        [dict(zip(wanted.metrics, _scaled(launch, factors), strict=True)) for launch in repeat]
        for repeat in counted["values"]
    ]
    samples = {
        metric: tuple(_total(metric, launches) for launches in repeats) for metric in wanted.metrics
    }
    return Counters(
        kernels=tuple(_kernels(_names(counted, len(repeats[0])), repeats, wanted.metrics)),
        totals={metric: _median(values) for metric, values in samples.items()},
        samples=samples,
        units={metric: unit for metric, (_, unit, _) in described.items()},
        descriptions={metric: words for metric, (words, _, _) in described.items()},
        left_out=wanted.left_out,
        kernels_reason=counted["unnamed"],
        passes=counted["passes"],
        **facts,
    )


def _scaled(values: Iterable[float | None], factors: Iterable[float]) -> list[float | None]:
    return [
        None if value is None else value * factor
        for value, factor in zip(values, factors, strict=True)
    ]


def _names(counted: Mapping[str, Any], count: int) -> list[_Launch]:
    """Return the launches in order; numbers if their names are unknown."""
    if counted["unnamed"]:
        nothing = (0, 0, 0)
        return [(f"kernel {place + 1}", nothing, nothing) for place in range(count)]
    return [(name, tuple(grid), tuple(block)) for name, grid, block in counted["launches"]]


def _kernels(
    names: Sequence[_Launch], repeats: Sequence[Sequence[Values]], metrics: Sequence[str]
) -> Iterable[KernelCounters]:
    places: dict[_Launch, list[int]] = {}
    for place, launch in enumerate(names):
        places.setdefault(launch, []).append(place)
    for (name, grid, block), own in places.items():
        values = {}
        for metric in metrics:
            of_repeats = []
            for launches in repeats:
                # Repeats may have different launches if kernels have no names.
                counted = [launches[place] for place in own if place < len(launches)]
                total = _total(metric, counted)
                share = len(counted) if adds_up(metric) else 1
                of_repeats.append(None if total is None else total / share)
            values[metric] = _median(of_repeats)
        yield KernelCounters(name, len(own), values, grid, block)


def _total(metric: str, launches: Sequence[Values]) -> float | None:
    """Combine several launches: the sum of a count, the mean over time of a rate or share."""
    values = [launch[metric] for launch in launches]
    if adds_up(metric):
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None
    seconds = [launch[DURATION] for launch in launches]
    weighted = [
        (value, weight)
        for value, weight in zip(values, seconds, strict=True)
        if value is not None and weight
    ]
    if not weighted:
        return None
    total = math.fsum(itertools.starmap(operator.mul, weighted))
    return total / math.fsum(weight for _, weight in weighted)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
