"""A GPU's clocks, power and temperature at one moment, and during a block of code."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from convtime.core import codec
from convtime.core.checks import require
from convtime.view.figure import Figure
from convtime.view.shown import Shown

#: Share of the highest clock below which a sample is reported as throttled.
THROTTLED_BELOW = 0.95


@dataclasses.dataclass(frozen=True)
class ClockReading:
    """NVML's values at one moment; None for a value that this GPU or driver does not report.

    Attributes:
        seconds: time since the start of the readings.
        sm_clock_hz: SM clock.
        memory_clock_hz: memory clock.
        power: the GPU's power in watts: instantaneous, or averaged over the last second if the
            driver reports only that.
        temperature: temperature of the GPU's core, in °C.
        throttle_reasons: reasons that limited the clocks, by nvidia-smi's names, e.g.
            ``sw_power_cap``.
    """

    seconds: float
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    power: float | None
    temperature: float | None
    throttle_reasons: tuple[str, ...] | None

    def __str__(self) -> str:
        parts = [
            f"{name}{scale * value:.0f} {unit}"
            for name, value, scale, unit in (
                ("SM clock ", self.sm_clock_hz, 1e-6, "MHz"),
                ("memory clock ", self.memory_clock_hz, 1e-6, "MHz"),
                ("", self.power, 1.0, "W"),
                ("", self.temperature, 1.0, "°C"),
            )
            if value is not None
        ]
        if self.throttle_reasons:
            parts.append(f"throttled by {', '.join(self.throttle_reasons)}")
        return f"after {self.seconds:.3g} s: {', '.join(parts) or 'nothing was told'}"


class Timed(Protocol):
    """The times of a Measurement."""

    @property
    def seconds(self) -> tuple[float, ...]: ...
    @property
    def sampling_seconds(self) -> float | None: ...


@dataclasses.dataclass(repr=False)
class ClockTrace(codec.Stored, Shown, show="convtime.device.show"):
    """Readings of a GPU during a block of code; see :func:`convtime.trace_clocks`.

    Attributes:
        device: the GPU, e.g. ``cuda:0``.
        interval: seconds between two readings.
        started: time at which the block was entered, in seconds of ``time.perf_counter``.
        readings: readings in order of time; empty until the block ends.
        reason: why readings are missing or stopped early; empty if they did not.
    """

    device: str
    interval: float
    started: float
    readings: tuple[ClockReading, ...] = ()
    reason: str = ""

    def plot(self, times: Timed | Sequence[tuple[float, float]] | None = None) -> Figure:
        """Plot clock, power, temperature and throttle reasons over time.

        Args:
            times: iterations to plot above them, as pairs of start (``time.perf_counter()``) and
                duration, both in seconds. Or a Measurement that was the last action in the block:
                its samples have no time stamps and are spread evenly over its sampling time, or
                over their sum if that is longer because a steady warm-up contributed samples.

        Returns:
            A figure to save or show, e.g. ``trace.plot().save("trace.png")``.

        Raises:
            ValueError: the trace has no readings (the message says why).
        """
        require(
            self.readings,
            f"a trace without readings cannot be drawn: {self.reason or 'it is still running'}",
        )
        figure: Figure = self._drawing().plot(self, () if times is None else self._placed(times))
        return figure

    def _placed(self, times: Timed | Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return start (relative to the trace's start) and duration of each iteration."""
        if isinstance(times, Sequence):
            return [(start - self.started, duration) for start, duration in times]
        lasted = max(times.sampling_seconds or 0.0, sum(times.seconds))
        began = self.readings[-1].seconds - lasted
        step = lasted / len(times.seconds)
        return [(began + index * step, sample) for index, sample in enumerate(times.seconds)]
