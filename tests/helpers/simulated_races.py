"""Races on simulated samples, without a device."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from convtime import Comparison, Measurement, Race
from convtime.timing.comparison import Agreement
from convtime.timing.measurement import Condition
from convtime.tuning import elimination
from tests.helpers.measurements import make

KERNEL = Condition("kernel", "auto")


class SimulatedTimer:
    """Draws samples around true times, in seconds; its clock advances by what timing would take."""

    def __init__(
        self,
        true: Mapping[str, float],
        seed: int = 0,
        noise: float = 0.005,
        alone_error: float = 0.03,
        agreements: Mapping[str, Agreement] | None = None,
    ) -> None:
        self.true = true
        self.now = 0.0
        self.asked: list[tuple[list[str], float, bool]] = []
        self.timed_alone: list[str] = []
        self._random = random.Random(seed)
        self._noise = noise
        self._alone_error = alone_error
        self._agreements = agreements or {}

    def clock(self) -> float:
        return self.now

    def _measured(self, name: str, factors: Sequence[float]) -> Measurement:
        seconds = tuple(
            self.true[name] * factor * self._random.gauss(1, self._noise) for factor in factors
        )
        return make(
            name=name,
            seconds=seconds,
            sm_clocks_hz=(),
            activities=(),
            method=KERNEL,
            stop_reason="budget",
        )

    def time_alone(self, name: str) -> Measurement:
        self.now += 0.01
        self.timed_alone.append(name)
        error = self._random.uniform(1 - self._alone_error, 1 + self._alone_error)
        return self._measured(name, [error] * 8)

    def compare(self, names: Sequence[str], seconds: float, *, last: bool) -> Comparison:
        self.asked.append(([*names], seconds, last))
        count = int(min(max(seconds / len(names) / 250e-6, 7), 400))
        self.now += count * len(names) * 250e-6
        drift = [self._random.gauss(1, 0.02) for _ in range(count)]  # the same for all
        return Comparison({name: self._measured(name, drift) for name in names})

    def agreements(self, names: Sequence[str]) -> Mapping[str, Agreement]:
        return {name: self._agreements[name] for name in names if name in self._agreements}

    def too_fast(self, measured: Measurement) -> str:
        return ""


def run(timer: SimulatedTimer, order: Sequence[str] | None = None, seconds: float = 0.0) -> Race:
    names = [*timer.true]
    return elimination.Elimination(
        names,
        timer,
        order=order or names,
        seconds=seconds or 0.08 * len(names),
        margin=0.01,
        on_stage=lambda stage, names: None,
        clock=timer.clock,
    ).run()
