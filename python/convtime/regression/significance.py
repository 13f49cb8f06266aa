"""Significance of differences between separately measured medians, for one pair or many."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from convtime.core.load import _C
from convtime.timing.verdict import Ratio

_NORMAL = NormalDist()
_CONFIDENT = (1 + _C.CONFIDENCE) / 2
# Upper bound of the search: a larger quantile's probability underflows to 0. And its tolerance.
_LARGEST_NORMAL = 37.0
_NORMAL_STEP = 1e-6
# A run's interval is checked over at most 20 blocks. If the blocks differ, they determine the
# interval, regardless of the number of samples.
_MAX_DEGREES_OF_FREEDOM = 19


@dataclasses.dataclass(frozen=True)
class LogMedian:
    """The logarithm of a median, and its uncertainty towards either side.

    Attributes:
        value: the logarithm.
        below: sampling standard error towards shorter times; infinite if unknown.
        above: sampling standard error towards longer times; infinite if unknown.
        degrees_of_freedom: degrees of freedom of both standard errors.
        between_processes: standard deviation of the value between processes.
        processes: number of processes that this standard deviation was estimated from; infinite if
            it is known in advance.
    """

    value: float
    below: float
    above: float
    degrees_of_freedom: int
    between_processes: float
    processes: float = math.inf

    @classmethod
    def of_interval(
        cls, median: float, low: float, high: float, count: int, between_processes: float
    ) -> LogMedian:
        """Convert a median above 0 and its interval over ``count`` independent values."""
        degrees_of_freedom = max(1, min(count - 1, _MAX_DEGREES_OF_FREEDOM))
        quantile = student_quantile(_CONFIDENT, degrees_of_freedom)
        value = math.log(median)
        below = value - math.log(low) if low > 0 else math.inf
        above = math.log(high) - value if math.isfinite(high) else math.inf
        return cls(value, below / quantile, above / quantile, degrees_of_freedom, between_processes)

    @property
    def error(self) -> float:
        """Sampling standard error, on average over both sides."""
        return (self.below + self.above) / 2

    def half_width(self, error: float, z: float) -> float:
        """Return an interval's half-width for one of the errors and a normal quantile ``z``."""
        sampled = error * student_of_normal(z, self.degrees_of_freedom)
        return math.hypot(
            sampled, self.between_processes * student_of_normal(z, self.processes - 1)
        )


@dataclasses.dataclass(frozen=True)
class LogRatio:
    """The logarithm of a ratio of two medians that were measured separately.

    The sampling errors and the between-process errors of both medians are independent, so their
    squares add up. Each side of the interval uses the errors that move the ratio to that side, at
    each confidence (the method of variance estimates recovery: Zou and Donner, Statistics in
    Medicine 27, 2008).
    """

    over: LogMedian
    under: LogMedian

    @property
    def value(self) -> float:
        return self.over.value - self.under.value

    def interval(self) -> tuple[float, float]:
        """Return the interval at convtime's confidence; unbounded if an error is unknown."""
        z = _NORMAL.inv_cdf(_CONFIDENT)
        return self.value - self._down(z), self.value + self._up(z)

    def ratio(self) -> Ratio:
        return Ratio(*map(exponential, (self.value, *self.interval())))

    def p_value(self, margin: float) -> float:
        """Return the probability of such a difference if the true ratio is within 1 ± margin."""
        slower = _tail(self.value - math.log1p(margin), self._down)
        faster = _tail(math.log1p(-margin) - self.value, self._up)
        return min(1.0, 2 * min(slower, faster))

    def _down(self, z: float) -> float:
        return math.hypot(
            self.over.half_width(self.over.below, z), self.under.half_width(self.under.above, z)
        )

    def _up(self, z: float) -> float:
        return math.hypot(
            self.over.half_width(self.over.above, z), self.under.half_width(self.under.below, z)
        )


def exponential(logarithm: float) -> float:
    """Return the exponential, which is infinite instead of out of range."""
    try:
        return math.exp(logarithm)
    except OverflowError:
        return math.inf


def geomean(pairs: Sequence[LogRatio]) -> Ratio | None:
    """Return the geometric mean of ratios with its interval; None without ratios."""
    if not pairs:
        return None
    mean = math.fsum(pair.value for pair in pairs) / len(pairs)
    sides = [(pair.value - pair.interval()[0], pair.interval()[1] - pair.value) for pair in pairs]
    # Effects that all names of a process share do not average out: use the narrowest as a bound.
    down, up = (max(math.hypot(*side) / len(pairs), min(side)) for side in zip(*sides, strict=True))
    return Ratio(exponential(mean), exponential(mean - down), exponential(mean + up))


def _tail(difference: float, half_width: Callable[[float], float]) -> float:
    """Return the probability of such a difference, or a larger one, by chance alone.

    It is the one-sided tail probability of the interval that reaches exactly as far.
    """
    if difference <= 0:  # within the margin: the exact probability does not matter
        return 1.0
    low, high = 0.0, _LARGEST_NORMAL
    while high - low > _NORMAL_STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if half_width(middle) < difference else (low, middle)
    return _NORMAL.cdf(-low)


def student_of_normal(z: float, degrees_of_freedom: float) -> float:
    """Return the value that Student's t exceeds as often as a normal variable exceeds ``z`` > 0.

    By Wallace (Annals of Mathematical Statistics 30, 1959). With three or more degrees of freedom,
    the approximation's error in the tails is conservative.
    """
    n = degrees_of_freedom
    if math.isinf(n):
        return z
    ratio = z * (8 * n + 3) / (8 * n + 1)
    try:
        return math.sqrt(n * math.expm1(ratio * ratio / n))
    except OverflowError:
        return math.inf


def normal_of_student(t: float, degrees_of_freedom: float) -> float:
    """Reverse :func:`student_of_normal`."""
    n = degrees_of_freedom
    return math.sqrt(n * math.log1p(t * t / n)) * (8 * n + 1) / (8 * n + 3)


def student_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t for a probability above one half."""
    return student_of_normal(_NORMAL.inv_cdf(probability), degrees_of_freedom)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return for each p-value the smallest false-discovery rate at which it is a discovery.

    Count the values of at most q as discoveries. Then on average a share of q of the discoveries is
    false. If there is nothing to discover, a share of q of all runs has a discovery (Benjamini and
    Hochberg, Journal of the Royal Statistical Society B 57, 1995). The same holds for values that
    are positively dependent, such as those of tests that share a GPU (Benjamini and Yekutieli,
    Annals of Statistics 29, 2001).
    """
    count = len(p_values)
    rates = [1.0] * count
    least = 1.0
    by_size = sorted(range(count), key=p_values.__getitem__)
    for rank in range(count, 0, -1):
        index = by_size[rank - 1]
        rates[index] = least = min(least, p_values[index] * count / rank)
    return rates
