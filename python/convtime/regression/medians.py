"""Medians of one or several processes, with their uncertainty."""

from __future__ import annotations

import dataclasses
import math

from convtime.regression.differences import on_host
from convtime.regression.noise import Noise, Repeats
from convtime.regression.significance import LogMedian
from convtime.timing.measurement import Measurement

# Standard deviation of medians between processes without a change, unless it was calibrated: the
# largest for fresh processes on an H200 (benchmarks/results, repeatability and placement), and an
# assumption for times by the host's clock.
_BETWEEN_PROCESSES = 0.003
_BETWEEN_PROCESSES_ON_HOST = 0.005
# Undisturbed processes report errors up to about this many times their median error, because an
# interval of few values is itself uncertain (benchmarks/results, placement).
_USUAL = 2.0


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
    between = between_processes(measured)
    if measured.between_runs:
        between = 0.0  # already included in the interval
    between = max(between, spread)
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
