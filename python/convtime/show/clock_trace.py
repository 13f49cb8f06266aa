"""A ClockTrace as one line, as a table, and as HTML."""

from __future__ import annotations

import collections
import statistics

from convtime.results.clock_trace import ClockTrace
from convtime.show import html, text

# What is read, with the unit that it is shown in, and what that is of the unit that it is kept in.
_QUANTITIES = (
    ("SM clock", "sm_clock_hz", "MHz", 1e-6),
    ("memory clock", "memory_clock_hz", "MHz", 1e-6),
    ("power", "power", "W", 1.0),
    ("temperature", "temperature", "°C", 1.0),
)


def line(trace: ClockTrace) -> str:
    """How long was traced, and the range of each quantity."""
    if not trace.readings:
        return text.printable(f"{trace.device}: no readings: {_why_none(trace)}")
    ranges = [f"{name} {low} .. {high} {unit}" for name, low, _, high, unit in _ranges(trace)]
    throttled = _throttled(trace)
    if throttled:
        ranges.append(f"throttled by {', '.join(throttled)}")
    told = f"{trace.device}: {_span(trace)}: {', '.join(ranges) or 'nothing was told'}"
    return text.printable(f"{told}; but {trace.reason}" if trace.reason else told)


def sheet(trace: ClockTrace) -> str:
    """A table of what was read, and what throttled the GPU for how long."""
    if not trace.readings:
        return line(trace)
    parts = [
        text.printable(f"{trace.device}: {_span(trace)}"),
        text.table(_HEADERS, _ranges(trace), right=_HEADERS[1:4]),
        text.sentences(_remarks(trace)),
    ]
    return "\n\n".join(filter(None, parts))


def html_sheet(trace: ClockTrace) -> str:
    """As HTML, with everything escaped."""
    if not trace.readings:
        return html.paragraph(line(trace))
    title = f"{trace.device}: {_span(trace)}"
    return html.table(_HEADERS, _ranges(trace), title) + html.items(_remarks(trace))


_HEADERS = ("", "lowest", "median", "highest", "unit")


def _span(trace: ClockTrace) -> str:
    return f"{len(trace.readings)} readings in {trace.readings[-1].seconds:.3g} s"


def _why_none(trace: ClockTrace) -> str:
    return trace.reason or "the block has not ended"


def _ranges(trace: ClockTrace) -> list[list[str]]:
    """Lowest, median and highest of each quantity that was told, with its unit."""
    rows = []
    for name, attribute, unit, scale in _QUANTITIES:
        values = [getattr(reading, attribute) for reading in trace.readings]
        known = [scale * value for value in values if value is not None]
        if known:
            found = (min(known), statistics.median(known), max(known))
            rows.append([name, *(f"{value:.0f}" for value in found), unit])
    return rows


def _throttled(trace: ClockTrace) -> dict[str, int]:
    """In how many readings each reason kept the clocks from being higher."""
    return collections.Counter(
        reason for reading in trace.readings for reason in reading.throttle_reasons or ()
    )


def _remarks(trace: ClockTrace) -> list[str]:
    remarks = [
        f"throttled by {reason} in {count} of {len(trace.readings)} readings"
        for reason, count in _throttled(trace).items()
    ]
    return [*remarks, f"ended early: {trace.reason}"] if trace.reason else remarks
