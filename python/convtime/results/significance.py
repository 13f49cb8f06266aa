"""Whether two medians that were measured apart differ, and how many of many such pairs do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from convtime.core.load import _C

_NORMAL = NormalDist()
_CONFIDENT = (1 + _C.CONFIDENCE) / 2
# Beyond it, a probability is no number above 0; and how exactly one is looked for.
_LARGEST_NORMAL = 37.0
_NORMAL_STEP = 1e-6
# Within a run, intervals are checked over 20 blocks at most: where those differ, the interval is
# known by them, however many samples there are.
_MAX_DEGREES_OF_FREEDOM = 19


@dataclasses.dataclass(frozen=True)
class LogMedian:
    """The logarithm of a median, and how well it is known towards either side.

    Attributes:
        value: the logarithm.
        below: the standard error of what was sampled towards shorter times; infinite where it is
            not known.
        above: towards longer ones.
        degrees_of_freedom: of both.
        between_processes: the standard deviation of medians from one process to the next, which is
            known beforehand.
    """

    value: float
    below: float
    above: float
    degrees_of_freedom: int
    between_processes: float

    @classmethod
    def of_interval(
        cls, median: float, low: float, high: float, count: int, between_processes: float
    ) -> LogMedian:
        """Of a median above 0 with its interval, which is over so many independent values."""
        degrees_of_freedom = max(1, min(count - 1, _MAX_DEGREES_OF_FREEDOM))
        quantile = student_quantile(_CONFIDENT, degrees_of_freedom)
        value = math.log(median)
        below = value - math.log(low) if low > 0 else math.inf
        above = math.log(high) - value if math.isfinite(high) else math.inf
        return cls(value, below / quantile, above / quantile, degrees_of_freedom, between_processes)

    def reach(self, error: float, z: float) -> float:
        """Half of an interval with that one of the errors, at the confidence of a normal ``z``."""
        sampled = error * student_of_normal(z, self.degrees_of_freedom)
        return math.hypot(sampled, self.between_processes * z)


@dataclasses.dataclass(frozen=True)
class LogRatio:
    """The logarithm of a ratio of two medians that were measured apart.

    Errors that do not depend on each other, those of the samples and those between processes of
    either median, add up as squares, towards each side those that take the ratio there, at each
    confidence (the method of variance estimates recovery: Zou and Donner, Statistics in Medicine
    27, 2008).
    """

    over: LogMedian
    under: LogMedian

    @property
    def value(self) -> float:
        """The logarithm."""
        return self.over.value - self.under.value

    def interval(self) -> tuple[float, float]:
        """At the confidence of all intervals; unbounded where an error is not known."""
        z = _NORMAL.inv_cdf(_CONFIDENT)
        return self.value - self._down(z), self.value + self._up(z)

    def p_value(self, margin: float) -> float:
        """How likely such a difference is where the true ratio is within 1 ± margin."""
        slower = _tail(self.value - math.log1p(margin), self._down)
        faster = _tail(math.log1p(-margin) - self.value, self._up)
        return min(1.0, 2 * min(slower, faster))

    def _down(self, z: float) -> float:
        return math.hypot(
            self.over.reach(self.over.below, z), self.under.reach(self.under.above, z)
        )

    def _up(self, z: float) -> float:
        return math.hypot(
            self.over.reach(self.over.above, z), self.under.reach(self.under.below, z)
        )


def _tail(difference: float, reach: Callable[[float], float]) -> float:
    """The probability of such a difference, or a larger one, by chance alone.

    That is where the interval that leaves out as much on that side reaches just as far.
    """
    if difference <= 0:  # not beyond the margin: what exactly it is matters to nobody
        return 1.0
    low, high = 0.0, _LARGEST_NORMAL
    while high - low > _NORMAL_STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if reach(middle) < difference else (low, middle)
    return _NORMAL.cdf(-low)


def student_of_normal(z: float, degrees_of_freedom: float) -> float:
    """What Student's t is above as often as a normal value is above a positive ``z``.

    By Wallace (Annals of Mathematical Statistics 30, 1959). From three degrees of freedom on, what
    is off in the tails is on the careful side.
    """
    n = degrees_of_freedom
    ratio = z * (8 * n + 3) / (8 * n + 1)
    try:
        return math.sqrt(n * math.expm1(ratio * ratio / n))
    except OverflowError:
        return math.inf


def student_quantile(probability: float, degrees_of_freedom: float) -> float:
    """What Student's t is below with a probability of above a half."""
    return student_of_normal(_NORMAL.inv_cdf(probability), degrees_of_freedom)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Each with the smallest share of false discoveries among all that are found with it.

    Who takes those of at most q for discoveries has a share of q of false ones among them on
    average, and where there is nothing to be found, finds something in a share of q of all runs
    (Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995). So it is also for
    values that go up and down together, as those of tests that share a GPU (Benjamini and
    Yekutieli, Annals of Statistics 29, 2001).
    """
    count = len(p_values)
    found = [1.0] * count
    least = 1.0
    by_size = sorted(range(count), key=p_values.__getitem__)
    for rank in range(count, 0, -1):
        index = by_size[rank - 1]
        least = min(least, p_values[index] * count / rank)
        found[index] = least
    return found
