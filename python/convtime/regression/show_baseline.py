"""Show a baseline: the noise and the margin of each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from convtime.regression.noise import LEAST_PROCESSES
from convtime.timing import show_measurements
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.wording import counted, format_seconds

if TYPE_CHECKING:
    from convtime.regression.baseline import Baseline
    from convtime.regression.noise import Repeats

_HEADERS = ("median", "runs", "noise within", "between processes", "margin", "name")


def line(baseline: Baseline) -> str:
    calibrated = sum(one.noise is not None for one in baseline.repeats.values())
    return f"{len(baseline.measurements)} measurements, {calibrated} calibrated"


def printed(baseline: Baseline) -> Iterator[Block]:
    """Yield a row per measurement, relative ones after their time, and remarks."""
    yield Line(line(baseline), role="answer")
    rows = []
    for name, measured in baseline.measurements.items():
        rows.append((format_seconds(measured.median), *_noise(baseline.repeats.get(name)), name))
        if name in baseline.relative:
            relative = baseline.relative[name]
            rows.append((f"{relative.medians[0]:.3f}×", *_noise(relative), f"{name}, relative"))
    yield Table(_HEADERS, rows, right=_HEADERS[:-1])
    yield Sentences(remarks(baseline), role="caution")


def details(baseline: Baseline) -> Iterator[Block]:
    return printed(baseline)


def remarks(baseline: Baseline, *, calibrated: bool = False) -> Iterator[str]:
    """Yield sentences about outlying runs and tests that are not calibrated or too noisy.

    Args:
        baseline: the baseline.
        calibrated: whether all tests were to be calibrated; assumed if any test is.
    """
    for run, names in sorted(baseline.outlying.items()):
        yield f"run {run} is outlying and does not count for {', '.join(names)}"
    for name, count in baseline.second_modes.items():
        yield f"{count} runs are a second mode of {name}, which counts for its noise"
    uncalibrated = _uncalibrated(baseline)
    if uncalibrated and (calibrated or any(one.noise for one in baseline.repeats.values())):
        yield (
            f"not calibrated, so that the common margin counts: {', '.join(uncalibrated)}; at "
            f"least {LEAST_PROCESSES} are needed: calibrate with more runs"
        )
    yield from baseline.too_noisy


def _uncalibrated(baseline: Baseline) -> list[str]:
    """Return the names that have a time but no noise, with the number of runs that count."""
    timed = (name for name, one in baseline.measurements.items() if one.median > 0)
    repeats_by_name: dict[str, Repeats | None] = dict.fromkeys(timed)
    repeats_by_name |= baseline.all_repeats()
    return [
        f"{name} ({counted(1 if repeats is None else len(repeats.not_outlying), 'run')} left)"
        for name, repeats in repeats_by_name.items()
        if repeats is None or repeats.noise is None
    ]


def _noise(repeats: Repeats | None) -> tuple[str, str, str, str]:
    count = "1" if repeats is None else str(len(repeats.not_outlying))
    noise = None if repeats is None else repeats.noise
    if noise is None:
        return count, "", "", ""
    return count, f"{noise.within:.2%}", f"{noise.between:.2%}", f"{noise.margin:.2%}"


def appendix(saved: Baseline) -> Iterator[Block]:
    yield from show_measurements.each_of(saved.measurements)
