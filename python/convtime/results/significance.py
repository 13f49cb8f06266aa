"""Whether two medians that were measured apart differ, and how many of many such pairs do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

from convtime.core.load import _C

_NORMAL = NormalDist()
# Within a run, intervals are checked over 20 blocks at most: where those differ, the interval is
# known by them, however many samples there are.
_MAX_DEGREES_OF_FREEDOM = 19


@dataclasses.dataclass(frozen=True)
class LogMedian:
    """The logarithm of a median, and how well it is known towards either side.

    Attributes:
        value: the logarithm.
        below: the standard error towards shorter times; infinite where it is not known.
        above: towards longer ones.
        degrees_of_freedom: of both.
    """

    value: float
    below: float
    above: float
    degrees_of_freedom: int

    @classmethod
    def of_interval(
        cls, median: float, low: float, high: float, count: int, least_error: float
    ) -> LogMedian:
        """Of a median above 0 with its interval, which is over so many independent values.

        Its errors are no smaller than ``least_error``.
        """
        degrees_of_freedom = max(1, min(count - 1, _MAX_DEGREES_OF_FREEDOM))
        quantile = student_quantile((1 + _C.CONFIDENCE) / 2, degrees_of_freedom)
        value = math.log(median)
        below = value - math.log(low) if low > 0 else math.inf
        above = math.log(high) - value if math.isfinite(high) else math.inf
        below, above = (max(side / quantile, least_error) for side in (below, above))
        return cls(value, below, above, degrees_of_freedom)


@dataclasses.dataclass(frozen=True)
class LogRatio:
    """The logarithm of a ratio of two medians that were measured apart.

    The errors of two medians that do not depend on each other add up as squares, towards each side
    those that take the ratio there (the method of variance estimates recovery: Zou and Donner,
    Statistics in Medicine 27, 2008), and the ratio over its error follows Student's t with the
    degrees of freedom of Welch (1947) and Satterthwaite (1946).
    """

    over: LogMedian
    under: LogMedian

    @property
    def value(self) -> float:
        """The logarithm."""
        return self.over.value - self.under.value

    def interval(self) -> tuple[float, float]:
        """At the confidence of all intervals; unbounded where an error is not known."""
        confident = (1 + _C.CONFIDENCE) / 2
        down, up = self._errors()
        return (
            self.value - down[0] * student_quantile(confident, down[1]),
            self.value + up[0] * student_quantile(confident, up[1]),
        )

    def p_value(self, margin: float) -> float:
        """How likely such a difference is where the true ratio is within 1 ± margin."""
        down, up = self._errors()
        slower = _tail(self.value - math.log1p(margin), *down)
        faster = _tail(math.log1p(-margin) - self.value, *up)
        return min(1.0, 2 * min(slower, faster))

    def _errors(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Error and degrees of freedom towards lower ratios, and towards higher ones."""
        return (
            _welch((self.over.below, self.over), (self.under.above, self.under)),
            _welch((self.over.above, self.over), (self.under.below, self.under)),
        )


def _welch(*parts: tuple[float, LogMedian]) -> tuple[float, float]:
    squares = [error**2 for error, _ in parts]
    total = sum(squares)
    if not 0 < total < math.inf:
        return math.sqrt(total), float(min(median.degrees_of_freedom for _, median in parts))
    shares = sum(
        (square / total) ** 2 / median.degrees_of_freedom
        for square, (_, median) in zip(squares, parts, strict=True)
    )
    return math.sqrt(total), 1 / shares


def _tail(difference: float, error: float, degrees_of_freedom: float) -> float:
    """The probability of such a difference, or a larger one, by chance alone."""
    if difference <= 0:  # not beyond the margin: what exactly it is matters to nobody
        return 1.0
    if error == 0:
        return 0.0
    return student_tail(difference / error, degrees_of_freedom)


def student_tail(t: float, degrees_of_freedom: float) -> float:
    """The probability that Student's t is above a positive ``t``.

    By the normal distribution's: Wallace (Annals of Mathematical Statistics 30, 1959). From three
    degrees of freedom on, what is off in the tails is on the careful side.
    """
    n = degrees_of_freedom
    z = _wallace(n) * math.sqrt(n * math.log1p(t * t / n))
    return _NORMAL.cdf(-z)


def student_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Reverses :func:`student_tail`, for a probability of above a half that t is below."""
    n = degrees_of_freedom
    z = _NORMAL.inv_cdf(probability) / _wallace(n)
    return math.sqrt(n * math.expm1(z * z / n))


def _wallace(n: float) -> float:
    return (8 * n + 1) / (8 * n + 3)


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
