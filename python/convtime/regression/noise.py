"""The noise of a test between processes, medians with it, and the smallest difference found."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from convtime.core import codec
from convtime.core.checks import require
from convtime.regression.differences import on_host
from convtime.regression.significance import LogMedian, student_quantile
from convtime.timing.measurement import Measurement

#: Share of unchanged tests that are found slower or faster in one run.
FALSE_ALARMS = 0.001
#: Share of the tests that changed by their margin and are found.
POWER = 0.95
#: Fewer processes say too little about the noise.
LEAST_PROCESSES = 5
#: A test whose margin is larger is not worth its time.
TOO_NOISY = 0.10

# The least standard deviation of medians between processes that was measured on an H200
# (benchmarks/results, repeatability): a few processes can agree better than that by chance.
_LEAST_SPREAD = 0.0007
# A process is outlying if its distance from the median of all is more than this number of robust
# standard deviations, and more than a share of the time.
_OUTLYING = 5.0
_OUTLYING_SHARE = 0.03
_MOST_OUTLYING = 0.1  # of the processes
_NORMAL_PER_MAD = 1.4826
# Standard deviation of medians between processes without a change, unless it was calibrated: the
# largest for fresh processes on an H200 (benchmarks/results, repeatability and placement), and an
# assumption for times by the host's clock.
_BETWEEN_PROCESSES = 0.003
_BETWEEN_PROCESSES_ON_HOST = 0.005
# Undisturbed processes report errors up to about this many times their median error, because an
# interval of few values is itself uncertain (benchmarks/results, placement).
_USUAL = 2.0
# A finding must be confirmed: each of two looks finds a change so often that both do with POWER.
_POWER_OF_LOOK = (1 + POWER) / 2


@dataclasses.dataclass(frozen=True)
class Noise:
    """Noise of an unchanged test, as shares of its time.

    Attributes:
        processes: number of processes that it is estimated from, without single outlying ones.
        within: standard error of the median of one process.
        between: standard deviation of the medians between processes, beyond ``within``.
        margin: smallest slowdown that the gate finds with 95 % power, when it finds 0.1 % of the
            unchanged tests slower or faster.
    """

    processes: int
    within: float
    between: float
    margin: float

    @property
    def spread(self) -> float:
        """Standard deviation of the medians of all processes."""
        return math.hypot(self.within, self.between)

    @property
    def too_noisy(self) -> bool:
        """Whether the test finds only changes that are too large to need a test."""
        return self.margin > TOO_NOISY


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Medians of an unchanged test in several processes.

    Attributes:
        medians: the median of each process, in seconds or in times of a reference operation.
        errors: standard error of each median within its process, as a share of it.
        noise: the calibrated noise; None if it is not calibrated.
    """

    medians: tuple[float, ...]
    errors: tuple[codec.UpperBound, ...]
    noise: Noise | None = None

    def __post_init__(self) -> None:
        require(
            len(self.errors) == len(self.medians),
            f"repeats must have an error for each median, got {len(self.errors)} for "
            f"{len(self.medians)}",
        )
        require(
            self.medians and 0 < min(self.medians) <= max(self.medians) < math.inf,
            f"medians must be above 0 and finite, got {self.medians}",
        )

    @property
    def outlying(self) -> tuple[int, ...]:
        """Indices of outlying processes: they do not count for the median.

        Their medians differ from the others by more than noise does. Fewer than three medians do
        not show which one is wrong.
        """
        if len(self.medians) < 3:
            return ()
        logs = [math.log(median) for median in self.medians]
        center = statistics.median(logs)
        distances = [abs(log - center) for log in logs]
        robust = _NORMAL_PER_MAD * statistics.median(distances)
        limit = max(_OUTLYING * robust, math.log1p(_OUTLYING_SHARE))
        return tuple(index for index, distance in enumerate(distances) if distance > limit)

    @property
    def not_outlying(self) -> tuple[int, ...]:
        """Indices of the other processes."""
        left_out = self.outlying
        return tuple(index for index in range(len(self.medians)) if index not in left_out)

    @property
    def has_second_mode(self) -> bool:
        """Whether so many processes are outlying that they are part of the test's noise."""
        few = max(1, int(_MOST_OUTLYING * len(self.medians)))
        return len(self.outlying) > few

    @property
    def log_median(self) -> float:
        """Mean of the logarithms of the medians."""
        return statistics.fmean(math.log(self.medians[index]) for index in self.not_outlying)

    @property
    def spread(self) -> float:
        """Standard deviation of the medians, as a share; 0 for fewer than two."""
        return self._spread_of(self.not_outlying)

    def _spread_of(self, processes: Sequence[int]) -> float:
        logs = [math.log(self.medians[index]) for index in processes]
        return statistics.stdev(logs) if len(logs) > 1 else 0.0

    def times(self, factor: float) -> Repeats:
        return dataclasses.replace(self, medians=tuple(factor * one for one in self.medians))

    def calibrated(self, tick: float) -> Repeats:
        """Return the repeats with their noise, if there are enough.

        Args:
            tick: the clock's tick, as a share of the median: no spread below its rounding counts.
        """
        counting = tuple(range(len(self.medians))) if self.has_second_mode else self.not_outlying
        count = len(counting)
        if count < LEAST_PROCESSES:
            return self
        within = statistics.median(self.errors[index] for index in counting)
        if not math.isfinite(within):  # too few samples for an interval: assume none within
            within = 0.0
        spread = max(self._spread_of(counting), _LEAST_SPREAD, tick / math.sqrt(12))
        within = min(within, spread)
        between = math.sqrt(spread**2 - within**2)
        noise = Noise(count, within, between, margin_of(spread, count))
        return dataclasses.replace(self, noise=noise)


def margin_of(spread: float, processes: int) -> float:
    """Return the smallest slowdown, as a share, that is found with 95 % power.

    One process is compared with the mean of the calibrated ones. Both the threshold of the test and
    its power follow Student's t, because the spread is estimated from the same processes.

    Args:
        spread: standard deviation of the medians between processes, as a share.
        processes: number of calibrated processes.
    """
    error = spread * math.sqrt(1 + 1 / processes)
    threshold = student_quantile(1 - FALSE_ALARMS / 2, processes - 1)
    return math.expm1(error * (threshold + student_quantile(_POWER_OF_LOOK, processes - 1)))


def between_processes(measured: Measurement) -> float:
    """Return the assumed standard deviation of a median between processes, as a share."""
    return _BETWEEN_PROCESSES_ON_HOST if on_host(measured) else _BETWEEN_PROCESSES


def log_median(
    measured: Measurement, repeats: Repeats | None = None, spread: float = 0.0
) -> LogMedian:
    """Return the median with an assumed variation between processes.

    Args:
        measured: the measurement of one process.
        repeats: the medians of several processes; their mean is used.
        spread: observed standard deviation between processes, which counts if it is larger than
            the assumed one.
    """
    # What is known of the variation between runs is already included in the interval.
    between = max(0.0 if measured.between_runs else between_processes(measured), spread)
    single = LogMedian.of_interval(
        measured.median, *measured.median_interval, measured.interval_count, between
    )
    if repeats is None:
        return single
    between /= math.sqrt(len(repeats.not_outlying))
    return dataclasses.replace(single, value=repeats.log_median, between_processes=between)


def calibrated_log_median(
    measured: Measurement, repeats: Repeats | None, noise: Noise
) -> LogMedian:
    """Return the median with the calibrated variation between processes; see :func:`calibrated`."""
    return calibrated(_without_assumption(measured), repeats, noise)


def calibrated(own: LogMedian, repeats: Repeats | None, noise: Noise) -> LogMedian:
    """Replace a median's variation between processes by the calibrated one.

    That includes the usual variation within a process. Only what exceeds it, as in a process that
    others disturbed, is added.

    Args:
        own: the median of one process, with its error within the process.
        repeats: the medians of several processes; their mean is used.
        noise: the calibrated noise.
    """
    if repeats is None:
        return dataclasses.replace(
            own,
            below=_excess(own.below, noise.within),
            above=_excess(own.above, noise.within),
            between_processes=noise.spread,
            processes=noise.processes,
        )
    return dataclasses.replace(
        own,
        value=repeats.log_median,
        below=0.0,
        above=0.0,
        between_processes=noise.spread / math.sqrt(len(repeats.not_outlying)),
        processes=noise.processes,
    )


def standard_error(measured: Measurement) -> float:
    """Return the standard error of a median above 0 within its process, as a share of it."""
    return _without_assumption(measured).error


def _without_assumption(measured: Measurement) -> LogMedian:
    measured = dataclasses.replace(measured, between_runs=0.0)
    return LogMedian.of_interval(
        measured.median, *measured.median_interval, measured.interval_count, 0.0
    )


def _excess(error: float, within: float) -> float:
    return math.sqrt(max(0.0, error**2 - (_USUAL * within) ** 2))
