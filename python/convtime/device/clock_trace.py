"""A GPU's clocks, power and temperature during a block of code."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from convtime.core import codec
from convtime.core.checks import require
from convtime.device.clock_reading import ClockReading
from convtime.view.figure import Figure
from convtime.view.shown import Shown


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
