"""Calibrated gates by the thousand, of medians that fresh processes measured on a GPU."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import results

if TYPE_CHECKING:
    from convtime.regression.significance import LogMedian

CALIBRATIONS = 500
RUNS = 20  # that a calibration judges
PROCESSES = 10  # of a calibration


class Process(NamedTuple):
    """What a fresh process measured: the median, its interval, and over how many values."""

    median: float
    low: float
    high: float
    values: int


def recorded() -> dict[str, list[Process]]:
    """Of each operation of placement.py, what its fresh processes measured."""
    path = results.HERE / "results" / "placement.json"
    processes: dict[str, list[Process]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        for name, one in row.get("operations", {}).items():
            process = Process(one["median"], one["low"], one["high"], one["placements"])
            processes.setdefault(name, []).append(process)
    return processes


def simulate(
    processes: Mapping[str, Sequence[Process]],
    calibrations: int = CALIBRATIONS,
    seed: int = 1,
) -> results.Row:
    """How often a calibrated gate finds what is slower by just the margin, and anything else.

    A calibration and every later run draw from the recorded processes. In each run, every other
    operation is slower by its margin. What is found counts if a second process finds it, too.
    """
    rng = random.Random(seed)  # noqa: S311
    margins: dict[str, list[float]] = {name: [] for name in processes}
    counts = {"planted": 0, "found": 0, "equal": 0, "false": 0}
    for _ in range(calibrations):
        for offset, (name, pool) in enumerate(processes.items()):
            gate = _Gate(rng, pool)
            margins[name].append(gate.margin)
            for run in range(RUNS):
                planted = (run + offset) % 2 == 1
                factor = 1 + gate.margin if planted else 1.0
                counts["planted" if planted else "equal"] += 1
                if gate.finds(factor) and gate.finds(factor):
                    counts["found" if planted else "false"] += 1
    return {
        "runs": calibrations * RUNS,
        **counts,
        "medians": {
            name: statistics.median(each.median for each in pool)
            for name, pool in processes.items()
        },
        "margins": {name: statistics.median(found) for name, found in margins.items()},
    }


class _Gate:
    """One operation of a calibrated baseline, by convtime's own statistics."""

    def __init__(self, rng: random.Random, pool: Sequence[Process]) -> None:
        from convtime.regression.noise import Repeats

        self._rng, self._pool = rng, pool
        drawn = rng.choices(pool, k=PROCESSES)
        errors = tuple(_own(process, 1.0).error for process in drawn)
        repeats = Repeats(tuple(process.median for process in drawn), errors).calibrated(0.0)
        if repeats.noise is None:
            raise RuntimeError(
                f"{PROCESSES} processes are too few after outlying ones are left out"
            )
        self._repeats, self._noise = repeats, repeats.noise
        self.margin = repeats.noise.margin

    def finds(self, factor: float) -> bool:
        """Whether one more process, whose times are longer by a factor, is found to differ."""
        from convtime.regression.medians import calibrated
        from convtime.regression.noise import FALSE_ALARMS
        from convtime.regression.significance import LogRatio

        own = _own(self._rng.choice(self._pool), factor)
        over = calibrated(own, None, self._noise)
        under = calibrated(own, self._repeats, self._noise)
        return LogRatio(over, under).p_value(0.0) <= FALSE_ALARMS


def _own(process: Process, factor: float) -> LogMedian:
    from convtime.regression.significance import LogMedian

    median, low, high = (factor * seconds for seconds in process[:3])
    return LogMedian.of_interval(median, low, high, process.values, 0.0)


def margin_over(row: results.Row, seconds: float) -> float:
    """The median margin of those operations that take longer."""
    margins: list[float] = [
        margin for name, margin in row["margins"].items() if row["medians"][name] > seconds
    ]
    return statistics.median(margins)
