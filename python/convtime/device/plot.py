"""Plot of a GPU's clocks over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.plot import COLORS, microseconds, new_figure, scaled
from convtime.core.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convtime.device.clock_trace import ClockTrace


def clock_figure(trace: ClockTrace, times: Sequence[tuple[float, float]]) -> Figure:
    """Draw clock, power, temperature and throttle reasons over time, with iterations above.

    Args:
        trace: trace with at least one reading.
        times: start of each iteration relative to the trace's start, and its duration, in seconds;
            may be empty.

    Raises:
        InputError: matplotlib is missing.
    """
    reasons = sorted({why for reading in trace.readings for why in reading.throttle_reasons or ()})
    panels = {
        "time (µs)": bool(times),
        "SM clock (MHz)": True,
        "power (W)": True,
        "temperature (°C)": True,
        "throttled by": bool(reasons),
    }
    shown = [label for label, wanted in panels.items() if wanted]
    figure: Figure = new_figure(8, 1 + 1.5 * len(shown))
    axes = dict(zip(shown, figure.subplots(len(shown), 1, sharex=True), strict=True))
    if times:
        axes["time (µs)"].plot(
            [start for start, _ in times],
            microseconds(duration for _, duration in times),
            ".",
            markersize=3,
            color=COLORS["PyTorch"],
        )
    seconds = [reading.seconds for reading in trace.readings]
    for label, name, scale in (
        ("SM clock (MHz)", "sm_clock_hz", 1e-6),
        ("power (W)", "power", 1.0),
        ("temperature (°C)", "temperature", 1.0),
    ):
        values = scaled((getattr(reading, name) for reading in trace.readings), scale)
        axes[label].plot(seconds, values, color=COLORS["convtime"])
    if reasons:
        _draw_reasons(axes["throttled by"], trace, reasons)
    for label, axis in axes.items():
        axis.set_ylabel(label, fontsize=8)
        axis.grid(alpha=0.25)
    axes[shown[-1]].set_xlabel(f"seconds ({printable(trace.device)})", parse_math=False)
    return figure


def _draw_reasons(axis: Any, trace: ClockTrace, reasons: Sequence[str]) -> None:
    """Draw one line per reason, from each reading with that reason to the next reading."""
    starts = [reading.seconds for reading in trace.readings]
    ends = [*starts[1:], starts[-1]]
    for place, reason in enumerate(reasons):
        stretches = [
            (start, end - start)
            for start, end, reading in zip(starts, ends, trace.readings, strict=True)
            if reason in (reading.throttle_reasons or ())
        ]
        axis.broken_barh(stretches, (place - 0.3, 0.6), color=COLORS["PyTorch"])
    labels = [printable(reason) for reason in reasons]
    axis.set_yticks(range(len(reasons)), labels, fontsize=7, parse_math=False)
