"""Show a ClockTrace: one line, a table of the quantities, and a figure over time."""

from __future__ import annotations

import collections
import itertools
import statistics
from collections.abc import Iterator, Sequence

from convtime.device.clock_trace import ClockTrace
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
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.wording import counted, printable

# Quantities: title, field, displayed unit, and factor from the stored to the displayed unit.
_QUANTITIES = (
    ("SM clock", "sm_clock_hz", "MHz", 1e-6),
    ("memory clock", "memory_clock_hz", "MHz", 1e-6),
    ("power", "power", "W", 1.0),
    ("temperature", "temperature", "°C", 1.0),
)
_HEADERS = ("", "lowest", "median", "highest")
_WIDTH = 560
_MOST_POINTS = 600


def line(trace: ClockTrace) -> str:
    if not trace.readings:
        why = trace.reason or "the block is still running"
        return printable(f"{trace.device}: no readings: {why}")
    parts = [
        f"{name} {min(values):.0f} .. {max(values):.0f} {unit}"
        for name, unit, values in _quantities(trace)
    ]
    throttled = _throttled(trace)
    if throttled:
        parts.append(f"throttled by {', '.join(throttled)}")
    text = f"{_title(trace)}: {', '.join(parts) or 'no quantity was reported'}"
    return printable(f"{text}; but {trace.reason}" if trace.reason else text)


def details(trace: ClockTrace) -> Iterator[Block]:
    if not trace.readings:
        yield Line(line(trace), role="answer")
        return
    yield Line(_title(trace), role="answer")
    yield Table(_HEADERS, _rows(trace), right=_HEADERS[1:])
    yield Sentences(_remarks(trace), role="caution")


def _quantities(trace: ClockTrace) -> Iterator[tuple[str, str, list[float]]]:
    """Yield the name, unit and known values of each quantity that this GPU and driver report."""
    for name, attribute, unit, scale in _QUANTITIES:
        read = (getattr(reading, attribute) for reading in trace.readings)
        values = [scale * value for value in read if value is not None]
        if values:
            yield name, unit, values


def _rows(trace: ClockTrace) -> Iterator[tuple[str, ...]]:
    for name, unit, values in _quantities(trace):
        yield name, *(f"{end(values):.0f} {unit}" for end in (min, statistics.median, max))


def _title(trace: ClockTrace) -> str:
    readings = counted(len(trace.readings), "reading")
    return f"{trace.device}: {readings} in {trace.readings[-1].seconds:.3g} s"


def _throttled(trace: ClockTrace) -> dict[str, int]:
    """Return the number of readings in which each reason limited the clocks."""
    return collections.Counter(
        reason for reading in trace.readings for reason in reading.throttle_reasons or ()
    )


def _remarks(trace: ClockTrace) -> list[str]:
    remarks = [
        f"throttled by {reason} in {count} of {len(trace.readings)} readings"
        for reason, count in _throttled(trace).items()
    ]
    return [*remarks, f"stopped early: {trace.reason}"] if trace.reason else remarks


def figures(trace: ClockTrace) -> Iterator[Figure]:
    if trace.readings:
        yield plot(trace, ())


def plot(trace: ClockTrace, times: Sequence[tuple[float, float]]) -> Figure:
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
        _course(trace, f"{name} ({unit})", field, scale, across)
        for name, field, unit, scale in _QUANTITIES
        if field != "memory_clock_hz"
        and any(getattr(reading, field) is not None for reading in trace.readings)
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
            seconds=numbers([times[index][0] for index in shown]),
            time=microseconds([times[index][1] for index in shown]),
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
            seconds=numbers([trace.readings[index].seconds for index in shown]),
            value=[values[index] for index in shown],
        ),
        "width": _WIDTH,
        "height": 90,
        "mark": {"type": "line", "color": BLUE, "point": {"color": BLUE, "size": 8}},
        "encoding": {"x": across, "y": quantity("value", title)},
    }


def _reasons(trace: ClockTrace, reasons: Sequence[str], across: Spec) -> Spec:
    """Draw one row per reason, with a bar from each first reading with it to the next without."""
    titles = dict(zip(reasons, labels(reasons), strict=True))
    starts = [reading.seconds for reading in trace.readings]
    stretches: list[tuple[str, float, float]] = []
    for reason in reasons:
        throttled = [reason in (reading.throttle_reasons or ()) for reading in trace.readings]
        begin = 0
        for is_throttled, group in itertools.groupby(throttled):
            end = begin + len([*group])
            if is_throttled:
                stretches.append((titles[reason], starts[begin], starts[min(end, len(starts) - 1)]))
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
                "scale": {"domain": [*titles.values()]},
            },
        },
    }
