"""Changes whose causes are known, because their facts are written into a measurement."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import results

if TYPE_CHECKING:
    from convtime import Measurement

EACH = 250  # changes of a cause
_CLOCK_HZ = 1.98e9
_COMMITS = ("a" * 40, "b" * 40)
_OTHER_COMMIT = 0.8  # share of the changes that come with another commit, whatever their cause


@dataclasses.dataclass
class _Change:
    """Facts of the later measurement, which differ from the earlier one's by chance at first."""

    rng: random.Random
    ratio: float
    clock: float
    load: float
    other_commit: bool
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def drawn(cls, rng: random.Random) -> _Change:
        return cls(
            rng,
            ratio=rng.uniform(1.03, 1.5),
            clock=rng.gauss(1, 0.01),
            load=rng.gauss(0, 1),
            other_commit=rng.random() < _OTHER_COMMIT,
        )


def _code(change: _Change) -> None:
    change.other_commit = True
    if change.rng.random() < 0.5:
        change.fields["host"] = _counted(change.ratio)


def _method(change: _Change) -> None:
    name = change.rng.choice(("queue", "regime", "convtime", "threads"))
    if name in ("queue", "regime"):
        change.fields[name] = "another"
    else:
        change.provenance[name] = "another"


def _hardware(change: _Change) -> None:
    what = change.rng.choice(("driver", "cpu", "clock", "clock"))
    if what == "clock":
        change.clock = change.rng.uniform(0.7, 0.93)
        # Memory has a clock of its own, so that not all of the time follows the SMs'.
        change.ratio = change.clock ** -change.rng.uniform(0.6, 1.0)
    else:
        change.provenance[what] = "another"


def _noise(change: _Change) -> None:
    what = change.rng.choice(("nothing", "load", "disturbance"))
    change.other_commit = what == "disturbance" and change.other_commit
    if what == "load":
        change.load = change.rng.uniform(2, 9)
    elif what == "disturbance":
        change.fields |= {"disturbance": "was preempted", "host": _counted(1.0)}


_PLANT: dict[str, Callable[[_Change], None]] = {
    "code": _code,
    "method": _method,
    "hardware or clocks": _hardware,
    "noise": _noise,
}


def _counted(factor: float) -> tuple[Any, ...]:
    from convtime.timing.host_reading import HostReading

    return (HostReading(1, 1e-3, 1e-3, instructions=1e6 * factor),)


def attribute_planted(each: int = EACH, seed: int = 1) -> results.Row:
    """By planted cause, how many changes are attributed to each."""
    from convtime import time_op
    from convtime.regression.attribution import attribute
    from convtime.timing.verdict import Ratio

    rng = random.Random(seed)  # noqa: S311
    base = time_op(int, device="cpu", warmup=1, stop="count", max_samples=20)
    found: dict[str, dict[str, int]] = {planted: {} for planted in _PLANT}
    for planted, plant in _PLANT.items():
        for _ in range(each):
            change = _Change.drawn(rng)
            plant(change)
            before, after = _pair(base, change)
            ratio = Ratio(change.ratio, change.ratio / 1.01, change.ratio * 1.01)
            cause = attribute(before, after, ratio).cause
            found[planted][cause] = found[planted].get(cause, 0) + 1
    return {"causes": found}


def _pair(base: Measurement, change: _Change) -> tuple[Measurement, Measurement]:
    provenance = {"driver": "580", "cpu": "a CPU", "convtime": "0.1", "threads": 1}

    def made(commit: str, load: float, clock: float, **fields: Any) -> Measurement:
        facts = {"git": {"commit": commit, "dirty": False}, "load_average": 1 + load}
        clocks = (_CLOCK_HZ * clock,) * len(base.seconds)
        fields = {"host": _counted(1.0), "disturbance": ""} | fields
        provenances = fields.pop("provenance", {})
        for name in fields.keys() & {"queue", "regime"}:
            fields[name] = dataclasses.replace(getattr(base, name), used=fields[name])
        return dataclasses.replace(
            base, provenance=provenance | facts | provenances, sm_clocks_hz=clocks, **fields
        )

    after = made(
        _COMMITS[change.other_commit],
        change.load,
        change.clock,
        provenance=change.provenance,
        **change.fields,
    )
    # Counts are known for both or for neither.
    counts = {} if "host" in change.fields else {"host": ()}
    before = made(_COMMITS[0], 0.0, 1.0, **counts)
    return before, after if "host" in change.fields else dataclasses.replace(after, host=())


def right(row: results.Row) -> float:
    """The share of the changes that are attributed to what was planted."""
    causes: dict[str, dict[str, int]] = row["causes"]
    total = sum(sum(found.values()) for found in causes.values())
    return sum(found.get(planted, 0) for planted, found in causes.items()) / total
