"""A GPU's clocks, power and temperature while something ran."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from convtime.core import codec
from convtime.results.clock_reading import ClockReading
from convtime.results.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(repr=False)
class ClockTrace(codec.Stored):
    """What a GPU did while a block of code ran; see :func:`convtime.trace_clocks`.

    Attributes:
        device: the GPU, e.g. ``cuda:0``.
        interval: seconds between two readings.
        started: when the block was entered, in seconds of ``time.perf_counter``.
        readings: in order of time; empty until the block is left.
        reason: why there are no readings, or no more of them; empty where there are.
    """

    SCHEMA: ClassVar[str] = "2.0"

    device: str
    interval: float
    started: float
    readings: tuple[ClockReading, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        """One line: how long was traced, and the range of clocks, power and temperature."""
        from convtime.show.clock_trace import line

        return line(self)

    def __repr__(self) -> str:
        return f"<convtime.ClockTrace {self}>"

    def details(self) -> str:
        """A table of what was read, and what throttled the GPU."""
        from convtime.show.clock_trace import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.clock_trace import html_sheet

        return html_sheet(self)

    def plot(self, times: Measurement | Sequence[tuple[float, float]] | None = None) -> Figure:
        """Draws clock, power, temperature and throttle reasons over time.

        Args:
            times: what is drawn above them: pairs of start (``time.perf_counter()``) and duration
                of each iteration, both in seconds; or a Measurement that was the last thing in the
                block, whose samples are drawn at even distances over its sampling time, or their
                sum where a steady warm-up gave some of them, since they have no time stamps.

        Returns:
            A figure to save or show, e.g. ``trace.plot().savefig("trace.png")``.

        Raises:
            ValueError: where there are no readings, and it says why, or no matplotlib.
        """
        if not self.readings:
            raise ValueError(
                f"a trace without readings cannot be drawn: {self.reason or 'it has not ended'}"
            )
        from convtime.show.plot import clock_figure

        return clock_figure(self, () if times is None else self._placed(times))

    def _placed(
        self, times: Measurement | Sequence[tuple[float, float]]
    ) -> list[tuple[float, float]]:
        """Start since the trace's own start, and duration, of each iteration."""
        if not isinstance(times, Measurement):
            return [(start - self.started, duration) for start, duration in times]
        lasted = max(times.sampling_seconds or 0.0, sum(times.seconds))
        began = self.readings[-1].seconds - lasted
        step = lasted / len(times.seconds)
        return [(began + place * step, sample) for place, sample in enumerate(times.seconds)]
