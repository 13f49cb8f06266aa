"""Where along an axis another candidate becomes the fastest."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convtime.timing.verdict import Ratio, Verdict

# The ratio of two values of an axis from which their geometric mean is their middle.
_GEOMETRIC_PAIR = 4


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Where along an axis one candidate overtakes another.

    ``at``, ``low`` and ``high`` follow from straight lines between the measured ratios. Without
    this assumption, the crossover is between ``after`` and ``before``.

    Attributes:
        axis: name of the axis.
        where: values of the other axes in words; empty if there is no other axis.
        below: the faster candidate below the crossover.
        above: the faster candidate above it.
        at: estimated value at which both take equally long.
        low: lower end of its 95 % interval.
        high: upper end of its 95 % interval.
        after: the last measured value at which ``below`` is certainly faster.
        before: the next measured value at which ``above`` is certainly faster.
    """

    axis: str
    where: str
    below: str
    above: str
    at: float
    low: float
    high: float
    after: float
    before: float

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return (
            f"{where}{self.above} overtakes {self.below} at about {self.axis} {self.at:.3g} "
            f"[{self.low:.3g}, {self.high:.3g}], between the measured {self.after:g} and "
            f"{self.before:g}"
        )


@dataclasses.dataclass(frozen=True)
class PairPoint:
    """Two candidates at one value of an axis.

    Attributes:
        x: the value.
        ratio: time of the first over the time of the second.
        verdict: verdict on the first.
    """

    x: float
    ratio: Ratio
    verdict: Verdict


def is_geometric(values: Sequence[float]) -> bool:
    """Return whether values are spaced more evenly on a logarithmic scale than on a linear one."""
    ordered = sorted(values)
    if len(ordered) < 2 or ordered[0] <= 0:
        return False
    if len(ordered) == 2:
        return ordered[1] >= _GEOMETRIC_PAIR * ordered[0]
    return _unevenness([math.log(value) for value in ordered]) < _unevenness(ordered)


def _unevenness(ordered: Sequence[float]) -> float:
    """Return the largest gap over the mean gap."""
    gaps = [after - before for before, after in itertools.pairwise(ordered)]
    return max(gaps) * len(gaps) / math.fsum(gaps)


def crossings(
    points: Sequence[PairPoint], names: tuple[str, str], axis: str, where: str, *, geometric: bool
) -> Iterator[Crossover]:
    """Yield the crossovers of two candidates, each between certain and opposite verdicts.

    Args:
        points: the pair at ascending values of the axis.
        names: the first and the second candidate.
        axis: name of the axis.
        where: values of the other axes in words.
        geometric: whether to interpolate on a logarithmic axis.
    """
    certain = [place for place, point in enumerate(points) if point.verdict in ("faster", "slower")]
    for start, end in itertools.pairwise(certain):
        if points[start].verdict == points[end].verdict:
            continue
        between = points[start : end + 1]
        xs = [math.log(point.x) if geometric else point.x for point in between]
        of_ends = [
            *_reaching_one(xs, [point.ratio.low for point in between]),
            *_reaching_one(xs, [point.ratio.high for point in between]),
        ]
        of_value = next(_reaching_one(xs, [point.ratio.value for point in between]))
        at, low, high = (
            math.exp(x) if geometric else x for x in (of_value, min(of_ends), max(of_ends))
        )
        first, second = names
        rises = points[start].verdict == "faster"
        yield Crossover(
            axis=axis,
            where=where,
            below=first if rises else second,
            above=second if rises else first,
            at=at,
            low=low,
            high=high,
            after=points[start].x,
            before=points[end].x,
        )


def _reaching_one(xs: Sequence[float], ratios: Sequence[float]) -> Iterator[float]:
    """Yield where straight lines through the logarithms of ratios reach a ratio of 1.

    Ratios without a logarithm are skipped: ends of intervals may be unknown between two points.
    """
    known = [
        (x, math.log(ratio)) for x, ratio in zip(xs, ratios, strict=True) if 0 < ratio < math.inf
    ]
    for (x, before), (next_x, after) in itertools.pairwise(known):
        if before * after <= 0 and before != after:
            yield x + (next_x - x) * before / (before - after)
