"""Find the change points of one series of log medians: ruptures proposes, a scan test confirms.

The noise between runs is assumed to be independent. A candidate counts if the largest t statistic
over all places where the change could be is too large for chance, for which a simulation gives the
effective number of independent tests. If the interval in which it was searched ends at another
change point, that end was chosen, too, which multiplies the number of tests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from convtime.core.errors import MissingPackageError
from convtime.regression.significance import normal_of_student, student_quantile

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

#: Fewest runs on each side of a change point. A disturbance of fewer runs is not a change.
FEWEST_RUNS = 5
_CONFIDENCE = 0.95
# Effective number of tests in a scan over series of such lengths at a false-alarm rate of
# 0.0005: the rate over that of one t test with the same limit, from 400,000 simulated series of
# each length (200,000 of the longest two).
_LENGTHS = (10, 12, 16, 20, 40, 80, 160, 320, 640, 1280)
_TESTS = (1.0, 3.0, 6.5, 9.0, 18.0, 31.0, 40.0, 50.0, 61.0, 77.0)
_OUTLIER = 5.0  # standard deviations from the local median beyond which a value is an outlier
_MOST_OUTLIERS = 0.05  # of a series; adjacent ones count once
_CLEAR_CORRELATION = 2.0  # standard errors above 0
_TIE = 1e-6  # weight of the most probable place if several windows around it are as probable
_MAD = 0.6745  # median absolute deviation of a normal variable


@dataclasses.dataclass(frozen=True)
class LevelChange:
    """A change point in a series.

    Attributes:
        at: index of the first value after it.
        earliest: first index of the interval that contains the true one.
        latest: last index of that interval.
        certainty: probability that the true index is at most one commit away.
        p_value: probability of such a change in a series without one.
        shift: change of the mean logarithm.
        error: half-width of the shift's interval.
    """

    at: int
    earliest: int
    latest: int
    certainty: float
    p_value: float
    shift: float
    error: float


def import_ruptures() -> Any:
    """Return the package.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import ruptures
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "change points require ruptures, which is not installed; run "
            "pip install 'convtime[history]'"
        ) from error
    return ruptures


def find_changes(
    values: Sequence[float], commits: Sequence[int], false_alarms: float
) -> list[LevelChange]:
    """Return the change points of a series.

    Args:
        values: finite log medians, in the order of the commits.
        commits: number of the commit of each value; a change can only be where it increases.
        false_alarms: expected number of change points in a series without a change.
    """
    if len(values) < 2 * FEWEST_RUNS:
        return []
    series = np.asarray(values, dtype=float)
    # Most medians can be equal, e.g. of a coarse clock.
    deviation = deviation_of(series) or float(series.std())
    if not deviation:
        return []
    scan = _Scan(_without_outliers(series, deviation), commits)
    return scan.locate(scan.confirm(_candidates(scan.series, deviation), false_alarms))


def deviation_of(values: Array | Sequence[float]) -> float:
    """Return the standard deviation without changes of level, from neighboring differences.

    It is NaN for a single value.
    """
    if len(values) < 2:
        return math.nan
    return float(np.median(np.abs(np.diff(values)))) / (_MAD * math.sqrt(2))


def _without_outliers(series: Array, deviation: float) -> Array:
    """Replace outliers by the median of the runs around them; steps stay as they are.

    Many that are apart from each other are a second mode, whose runs must count as noise.
    """
    half = FEWEST_RUNS - 1  # a level is the majority of the runs
    windows = np.lib.stride_tricks.sliding_window_view(series, 2 * half + 1)
    local = np.pad(np.median(windows, axis=1), half, mode="edge")
    outlying = np.abs(series - local) > _OUTLIER * deviation
    times = np.count_nonzero(np.diff(outlying, prepend=False) & outlying)
    if times > max(1, _MOST_OUTLIERS * len(series)):
        return series
    return np.where(outlying, local, series)


def _candidates(series: Array, deviation: float) -> list[int]:
    """Return more change points than there are: the penalty is too small on purpose."""
    detection = import_ruptures().KernelCPD("linear", min_size=FEWEST_RUNS)
    scaled = (series - series.mean()) / deviation
    ends: list[int] = detection.fit(scaled[:, None]).predict(pen=2 * math.log(len(series)))
    return ends[:-1]


class _Scan:
    """Tests and locates change points in a series; a list of ends has the index of each."""

    def __init__(self, series: Array, commits: Sequence[int]) -> None:
        self.series = series - series.mean()
        self._starts = np.flatnonzero(np.diff(np.asarray(commits)) > 0) + 1
        self._sums = np.concatenate([[0.0], np.cumsum(self.series)])

    def confirm(self, ends: list[int], false_alarms: float) -> list[int]:
        """Drop the least significant candidate until all are significant."""
        while ends:
            chances = [self._chance(ends, number) for number in range(len(ends))]
            worst = max(chances)
            if worst <= false_alarms:
                break
            del ends[chances.index(worst)]
        return ends

    def locate(self, ends: list[int]) -> list[LevelChange]:
        """Return where each change point is, given its neighbors; ``ends`` is changed."""
        changes = []
        for number in range(len(ends)):
            chance = self._chance(ends, number)
            begin, stop, indices = self._window(ends, number)
            if not len(indices):  # the change point before has moved to where this one was
                continue
            probabilities = self._probabilities(indices, begin, stop)
            near = probabilities.copy()
            near[1:] += probabilities[:-1]
            near[:-1] += probabilities[1:]
            best = int((near + _TIE * probabilities).argmax())
            ranked = np.argsort(-probabilities)
            enough = int(np.searchsorted(np.cumsum(probabilities[ranked]), _CONFIDENCE)) + 1
            likely = np.append(ranked[:enough], best)
            ends[number] = at = int(indices[best])
            shift = float(self.series[at:stop].mean() - self.series[begin:at].mean())
            error = self._level_error(ends) * math.sqrt(1 / (at - begin) + 1 / (stop - at))
            changes.append(
                LevelChange(
                    at=at,
                    earliest=int(indices[likely.min()]),
                    latest=int(indices[likely.max()]),
                    certainty=min(1.0, float(near[best])),
                    p_value=min(1.0, chance),
                    shift=shift,
                    error=error,
                )
            )
        return changes

    def _window(self, ends: list[int], number: int) -> tuple[int, int, Any]:
        """Return the ends of the stretch in which a change point is the only one.

        The third value has the indices in it where a change can be.
        """
        begin, _, stop = [0, *ends, len(self.series)][number : number + 3]
        starts = self._starts
        return (
            begin,
            stop,
            starts[(starts >= begin + FEWEST_RUNS) & (starts <= stop - FEWEST_RUNS)],
        )

    def _chance(self, ends: list[int], number: int) -> float:
        """Return the expected number of change points as significant as this one, by chance."""
        begin, stop, indices = self._window(ends, number)
        length = stop - begin
        if not len(indices):
            return math.inf
        explained = self._explained(indices, begin, stop).max()
        degrees = len(self.series) - len(ends) - 1
        residuals = self._residuals(ends)
        rest = residuals @ residuals + self._explained(np.array([ends[number]]), begin, stop)[0]
        variance = max((rest - explained) / degrees, np.finfo(float).tiny) * _dependence(residuals)
        z = normal_of_student(math.sqrt(explained / variance), degrees)
        tests = min(len(indices), float(np.interp(math.log(length), np.log(_LENGTHS), _TESTS)))
        for end in (begin, stop):
            tests *= length if end in ends else 1
        return tests * math.erfc(z / math.sqrt(2))

    def _explained(self, indices: Any, begin: int, stop: int) -> Array:
        """Return by how much a change at each place reduces the sum of squares."""
        left, right = indices - begin, stop - indices
        before = (self._sums[indices] - self._sums[begin]) / left
        after = (self._sums[stop] - self._sums[indices]) / right
        return np.asarray((after - before) ** 2 * left * right / (left + right))

    def _residuals(self, ends: list[int]) -> Array:
        """Return the values relative to the means between change points."""
        bounds = np.array([0, *ends, len(self.series)])
        lengths = np.diff(bounds)
        levels = np.diff(self._sums[bounds]) / lengths
        return np.asarray(self.series - np.repeat(levels, lengths))

    def _probabilities(self, indices: Any, begin: int, stop: int) -> Array:
        """Return the probability of each place.

        Levels and deviation are unknown, with flat priors of the levels and of the deviation's
        logarithm. The most probable window of three commits is then right more often than the most
        probable commit.
        """
        squares = (stop - begin) * self.series[begin:stop].var()
        rest = np.maximum(squares - self._explained(indices, begin, stop), np.finfo(float).tiny)
        left, right = indices - begin, stop - indices
        logs = -0.5 * np.log(left * right) - 0.5 * (stop - begin - 2) * np.log(rest)
        probabilities = np.exp(logs - logs.max())
        return np.asarray(probabilities / probabilities.sum())

    def _level_error(self, ends: list[int]) -> float:
        """Return the half-width of the interval of a single value around its level."""
        degrees = len(self.series) - len(ends) - 1
        residuals = self._residuals(ends)
        quantile = student_quantile((1 + _CONFIDENCE) / 2, degrees)
        return quantile * math.sqrt(residuals @ residuals / degrees)


def _dependence(residuals: Array) -> float:
    """Return by how much a dependence of neighboring runs increases a mean's variance.

    It is 1 unless the autocorrelation around the levels is clearly positive. If it is, it is
    taken for that of an autoregressive process.
    """
    squares = float(residuals @ residuals)
    correlation = float(residuals[1:] @ residuals[:-1]) / squares if squares else 0.0
    if correlation < _CLEAR_CORRELATION / math.sqrt(len(residuals)):
        return 1.0
    return (1 + correlation) / (1 - correlation)
