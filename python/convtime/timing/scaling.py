"""Estimate an operation's time at a clock at which it was not measured."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from convtime.core.units import format_seconds

if TYPE_CHECKING:
    from convtime.timing.measurement import Measurement

_FEWEST_AT_A_CLOCK = 5
_CLEARLY_HIGHER = 1.05  # minimum ratio of the higher clock to the lower one

#: SM clock in hertz, and the time of a sample at that clock in seconds.
ClockedTime = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class ScaledTime:
    """Time of an operation at a given clock; see :meth:`convtime.Measurement.at_clock`.

    Attributes:
        seconds: the time at that clock.
        clock_mhz: the SM clock.
        fixed_seconds: the part of the time that does not depend on the clock.
        cycles: the part that scales with the clock, in clock cycles.
        measured_mhz: the two measured clocks that it is derived from, the lower one first.
        source: the measurements at those clocks.
    """

    seconds: float
    clock_mhz: float
    fixed_seconds: float
    cycles: float
    measured_mhz: tuple[float, float]
    source: str

    def __str__(self) -> str:
        low_mhz, high_mhz = self.measured_mhz
        return (
            f"{format_seconds(self.seconds)} at {self.clock_mhz:.0f} MHz: "
            f"{format_seconds(self.fixed_seconds)} and {self.cycles:.4g} cycles, known from "
            f"{self.source} at {low_mhz:.0f} and {high_mhz:.0f} MHz"
        )


def scale(clock_mhz: float, measured: Measurement, other: Measurement | None) -> ScaledTime:
    """Return the time at a clock; see :meth:`convtime.Measurement.at_clock`.

    Raises:
        ValueError: the clock is not a positive number; or, as "not available", as ``at_clock``.
    """
    if other is not None:
        for condition in ("method", "cache", "device"):
            mine, theirs = (str(getattr(each, condition)) for each in (measured, other))
            if mine != theirs:
                raise ValueError(
                    f"times at other clocks are not available: {condition} is {mine!r} here and "
                    f"{theirs!r} in the other measurement; both must be equal"
                )
    if not (math.isfinite(clock_mhz) and clock_mhz > 0):
        raise ValueError(f"clock_mhz must be a positive number, got {clock_mhz!r}")
    samples = _at_known_clocks(measured)
    if other is None:
        samples.sort(key=operator.itemgetter(0))
        third = len(samples) // 3
        slow, fast = _middle(samples[:third]), _middle(samples[len(samples) - third :])
        source = "samples of this measurement"
    else:
        slow, fast = sorted((_middle(samples), _middle(_at_known_clocks(other))))
        source = "this measurement and another"
    (low_hz, at_low), (high_hz, at_high) = slow, fast
    if high_hz < _CLEARLY_HIGHER * low_hz:
        raise ValueError(
            f"times at other clocks are not available: the samples were taken at "
            f"{low_hz / 1e6:.0f} and {high_hz / 1e6:.0f} MHz, less than {_CLEARLY_HIGHER - 1:.0%} "
            "apart; also measure at another clock (regime='burst' and 'sustained', or "
            "convtime.locked_clocks), and pass that measurement as other="
        )
    cycles = (at_low - at_high) / (1 / low_hz - 1 / high_hz)
    fixed = at_high - cycles / high_hz
    if cycles < 0:  # faster at the lower clock: the time does not depend on the clock
        cycles, fixed = 0.0, (at_low + at_high) / 2
    elif fixed < 0:  # more cycles at the lower clock: the whole time scales with the clock
        cycles, fixed = (at_low * low_hz + at_high * high_hz) / 2, 0.0
    return ScaledTime(
        seconds=fixed + cycles / (1e6 * clock_mhz),
        clock_mhz=clock_mhz,
        fixed_seconds=fixed,
        cycles=cycles,
        measured_mhz=(low_hz / 1e6, high_hz / 1e6),
        source=source,
    )


def _at_known_clocks(measured: Measurement) -> list[ClockedTime]:
    clocks_hz = measured.sm_clocks_hz
    pairs = zip(clocks_hz, measured.seconds, strict=True) if clocks_hz else ()
    return [(clock_hz, second) for clock_hz, second in pairs if clock_hz is not None]


def _middle(samples: Sequence[ClockedTime]) -> ClockedTime:
    """Return the medians of clock and time."""
    if len(samples) < _FEWEST_AT_A_CLOCK:
        raise ValueError(
            f"times at other clocks are not available: one of the two clocks has {len(samples)} "
            f"samples, and at least {_FEWEST_AT_A_CLOCK} are needed"
        )
    clocks_hz, seconds = zip(*samples, strict=True)
    return statistics.median(clocks_hz), statistics.median(seconds)
