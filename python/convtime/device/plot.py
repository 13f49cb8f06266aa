"""Figure of a GPU's clocks over time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from convtime.view.figure import (
    BLUE,
    ORANGE,
    Figure,
    Spec,
    columns,
    kept,
    labels,
    microseconds,
    numbers,
    quantity,
    thinned,
)

if TYPE_CHECKING:
    from convtime.device.clock_trace import ClockTrace

_WIDTH = 560
_MOST_POINTS = 600
_QUANTITIES = (
    ("SM clock (MHz)", "sm_clock_hz", 1e-6),
    ("power (W)", "power", 1.0),
    ("temperature (°C)", "temperature", 1.0),
)


def clock_figure(trace: ClockTrace, times: Sequence[tuple[float, float]]) -> Figure:
    """Draw clock, power, temperature and throttle reasons over time, with iterations above.

    Args:
        trace: trace with at least one reading.
        times: start of each iteration relative to the trace's start, and its duration, in seconds;
            may be empty.
    """
    begins = [trace.readings[0].seconds, *(start for start, _ in times)]
    ends = [trace.readings[-1].seconds, *(start for start, _ in times)]
    across = quantity("seconds", "seconds", domain=[min(begins), max(ends)])
    panels = [_iterations(times, across)] if times else []
    panels += [
        _course(trace, *each, across)
        for each in _QUANTITIES
        if any(getattr(reading, each[1]) is not None for reading in trace.readings)
    ]
    reasons = sorted({why for reading in trace.readings for why in reading.throttle_reasons or ()})
    if reasons:
        panels.append(_reasons(trace, reasons, across))
    count = len(trace.readings)
    return Figure(
        title=f"Clocks of {trace.device}",
        description=(
            f"SM clock, power and temperature of {trace.device} in {count:,} readings over "
            f"{trace.readings[-1].seconds:.3g} s; throttled by {', '.join(reasons) or 'nothing'}."
            + thinned(min(count, _MOST_POINTS), count, "readings")
        ),
        view={"vconcat": panels, "spacing": 8},
    )


def _iterations(times: Sequence[tuple[float, float]], across: Spec) -> Spec:
    shown = kept([duration for _, duration in times], _MOST_POINTS)
    return {
        **columns(
            seconds=numbers([times[place][0] for place in shown]),
            time=microseconds([times[place][1] for place in shown]),
        ),
        "width": _WIDTH,
        "height": 90,
        "mark": {"type": "point", "filled": True, "size": 12, "opacity": 1, "color": ORANGE},
        "encoding": {"x": across, "y": quantity("time", "time (µs)")},
    }


def _course(trace: ClockTrace, title: str, name: str, factor: float, across: Spec) -> Spec:
    values = numbers([getattr(reading, name) for reading in trace.readings], factor)
    shown = kept(values, _MOST_POINTS)
    return {
        **columns(
            seconds=numbers([trace.readings[place].seconds for place in shown]),
            value=[values[place] for place in shown],
        ),
        "width": _WIDTH,
        "height": 90,
        "mark": {"type": "line", "color": BLUE, "point": {"color": BLUE, "size": 8}},
        "encoding": {"x": across, "y": quantity("value", title)},
    }


def _reasons(trace: ClockTrace, reasons: Sequence[str], across: Spec) -> Spec:
    """Draw one row per reason, with a bar from each first reading with it to the next without."""
    told = dict(zip(reasons, labels(reasons), strict=True))
    starts = [reading.seconds for reading in trace.readings]
    stretches: list[tuple[str, float, float]] = []
    for reason in reasons:
        throttled = [reason in (reading.throttle_reasons or ()) for reading in trace.readings]
        begin = 0
        for is_throttled, group in itertools.groupby(throttled):
            end = begin + len([*group])
            if is_throttled:
                stretches.append((told[reason], starts[begin], starts[min(end, len(starts) - 1)]))
            begin = end
    return {
        **columns(
            reason=[reason for reason, _, _ in stretches],
            seconds=numbers([begin for _, begin, _ in stretches]),
            end=numbers([end for _, _, end in stretches]),
        ),
        "width": _WIDTH,
        "height": 20 * len(reasons),
        "mark": {"type": "bar", "color": ORANGE},
        "encoding": {
            "x": across,
            "x2": {"field": "end"},
            "y": {
                "field": "reason",
                "type": "nominal",
                "title": "throttled by",
                "scale": {"domain": [*told.values()]},
            },
        },
    }
