"""Show a ClockTrace: one line, and a table of the quantities."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from convtime.device.plot import clock_figure as plot
from convtime.view.figure import Figure
from convtime.view.page import Block, Line, Sentences, Table
from convtime.view.wording import counted, printable

if TYPE_CHECKING:
    from convtime.device.clock_trace import ClockTrace

# Quantities: title, field, displayed unit, and factor from the stored to the displayed unit.
_QUANTITIES = (
    ("SM clock", "sm_clock_hz", "MHz", 1e-6),
    ("memory clock", "memory_clock_hz", "MHz", 1e-6),
    ("power", "power", "W", 1.0),
    ("temperature", "temperature", "°C", 1.0),
)
_HEADERS = ("", "lowest", "median", "highest")


def line(trace: ClockTrace) -> str:
    """Return one line with the duration and the range of each quantity."""
    if not trace.readings:
        why = trace.reason or "the block is still running"
        return printable(f"{trace.device}: no readings: {why}")
    told = [
        f"{name} {min(values):.0f} .. {max(values):.0f} {unit}"
        for name, unit, values in _quantities(trace)
    ]
    throttled = _throttled(trace)
    if throttled:
        told.append(f"throttled by {', '.join(throttled)}")
    said = f"{_title(trace)}: {', '.join(told) or 'no quantity was reported'}"
    return printable(f"{said}; but {trace.reason}" if trace.reason else said)


def details(trace: ClockTrace) -> Iterator[Block]:
    """Yield the readings, and how often each reason throttled the GPU."""
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
    """Yield the figures, the most informative first."""
    if trace.readings:
        yield plot(trace, ())
