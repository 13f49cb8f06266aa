"""Calibrated gates by the thousand, and changes whose causes are known: both simulated."""

import collections
import dataclasses
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import results

from convtime import Measurement, time_op
from convtime.regression.attribution import attribute
from convtime.regression.noise import FALSE_ALARMS, Repeats, calibrated
from convtime.regression.significance import LogMedian, LogRatio
from convtime.timing.measurement import HostReading
from convtime.timing.verdict import Ratio

CALIBRATIONS = 500
RUNS = 20  # that a calibration judges
PROCESSES = 10  # of a calibration


class Process(NamedTuple):
    median: float
    low: float
    high: float
    values: int

    def slower_by(self, factor: float) -> LogMedian:
        median, low, high = (factor * seconds for seconds in self[:3])
        return LogMedian.of_interval(median, low, high, self.values, 0.0)


def recorded() -> dict[str, list[Process]]:
    path = results.HERE / "results" / "placement.json"
    processes: dict[str, list[Process]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        for name, one in row.get("operations", {}).items():
            process = Process(one["median"], one["low"], one["high"], one["placements"])
            processes.setdefault(name, []).append(process)
    return processes


def simulate(
    processes: Mapping[str, Sequence[Process]], calibrations: int = CALIBRATIONS, seed: int = 1
) -> results.Row:
    """How often a calibrated gate finds what is slower by just the margin, and anything else.

    A calibration and every later run draw from the recorded processes. In each run, every other
    operation is slower by its margin. What is found counts if a second process finds it, too.
    """
    rng = random.Random(seed)  # noqa: S311
    margins: dict[str, list[float]] = {name: [] for name in processes}
    counts = dict.fromkeys(("planted", "found", "equal", "false"), 0)
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
            name: statistics.median(each.median for each in of) for name, of in processes.items()
        },
        "margins": {name: statistics.median(found) for name, found in margins.items()},
    }


class _Gate:
    """One operation of a calibrated baseline, by convtime's own statistics."""

    def __init__(self, rng: random.Random, pool: Sequence[Process]) -> None:
        self._rng, self._pool = rng, pool
        drawn = rng.choices(pool, k=PROCESSES)
        errors = tuple(process.slower_by(1.0).error for process in drawn)
        repeats = Repeats(tuple(process.median for process in drawn), errors).calibrated(0.0)
        if repeats.noise is None:
            raise RuntimeError(f"{PROCESSES} processes, less outlying ones, are too few")
        self._repeats, self._noise = repeats, repeats.noise
        self.margin = repeats.noise.margin

    def finds(self, factor: float) -> bool:
        own = self._rng.choice(self._pool).slower_by(factor)
        over = calibrated(own, None, self._noise)
        under = calibrated(own, self._repeats, self._noise)
        return LogRatio(over, under).p_value(0.0) <= FALSE_ALARMS


EACH = 250  # changes of a cause
_CLOCK_HZ = 1.98e9
_COMMITS = ("a" * 40, "b" * 40)
_OTHER_COMMIT = 0.8  # share of the changes that come with another commit, whatever their cause


class _Change:
    """Facts of the later measurement, which differ from the earlier one's by chance at first."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ratio = rng.uniform(1.03, 1.5)
        self.clock = rng.gauss(1, 0.01)
        self.load = rng.gauss(0, 1)
        self.other_commit = rng.random() < _OTHER_COMMIT
        self.fields: dict[str, Any] = {}
        self.provenance: dict[str, Any] = {}


PLANTED = ("code", "method", "hardware or clocks", "noise")


def _plant(planted: str, change: _Change) -> None:
    choose = change.rng.choice
    match planted:
        case "code":
            change.other_commit = True
            if change.rng.random() < 0.5:
                change.fields["host"] = _counted(change.ratio)
        case "method":
            name = choose(("queue", "regime", "convtime", "threads"))
            facts = change.fields if name in ("queue", "regime") else change.provenance
            facts[name] = "another"
        case "hardware or clocks":
            what = choose(("driver", "cpu", "clock", "clock"))
            if what == "clock":
                change.clock = change.rng.uniform(0.7, 0.93)
                # Memory has a clock of its own, so that not all of the time follows the SMs'.
                change.ratio = change.clock ** -change.rng.uniform(0.6, 1.0)
            else:
                change.provenance[what] = "another"
        case "noise":
            what = choose(("nothing", "load", "disturbance"))
            change.other_commit = what == "disturbance" and change.other_commit
            if what == "load":
                change.load = change.rng.uniform(2, 9)
            elif what == "disturbance":
                change.fields |= {"disturbance": "was preempted", "host": _counted(1.0)}


def _counted(factor: float) -> tuple[Any, ...]:
    return (HostReading(1, 1e-3, 1e-3, instructions=1e6 * factor),)


def attribute_planted(each: int = EACH, seed: int = 1) -> results.Row:
    rng = random.Random(seed)  # noqa: S311
    base = time_op(int, device="cpu", warmup=1, stop="count", max_samples=20)
    found = {planted: collections.Counter[str]() for planted in PLANTED}
    for planted, counts in found.items():
        for _ in range(each):
            change = _Change(rng)
            _plant(planted, change)
            before, after = _pair(base, change)
            ratio = Ratio(change.ratio, change.ratio / 1.01, change.ratio * 1.01)
            counts[attribute(before, after, ratio).cause] += 1
    return {"causes": found}


def _pair(base: Measurement, change: _Change) -> tuple[Measurement, Measurement]:
    provenance = {"driver": "580", "cpu": "a CPU", "convtime": "0.1", "threads": 1}

    def made(commit: str, load: float, clock: float, **fields: Any) -> Measurement:
        facts = {"git": {"commit": commit, "dirty": False}, "load_average": 1 + load}
        facts |= fields.pop("provenance", {})
        clocks = (_CLOCK_HZ * clock,) * len(base.seconds)
        # Counts are known for both or for neither.
        counts = _counted(1.0) if "host" in change.fields else ()
        fields = {"host": counts, "disturbance": ""} | fields
        for name in fields.keys() & {"queue", "regime"}:
            fields[name] = dataclasses.replace(getattr(base, name), used=fields[name])
        return dataclasses.replace(
            base, provenance=provenance | facts, sm_clocks_hz=clocks, **fields
        )

    changed = {"provenance": change.provenance, **change.fields}
    after = made(_COMMITS[change.other_commit], change.load, change.clock, **changed)
    return made(_COMMITS[0], 0.0, 1.0), after
