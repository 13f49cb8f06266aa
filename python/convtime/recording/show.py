"""Show a Recording: one line, a table of its regions, and their GPU work."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from convtime.recording.recording import Recording, RegionTimes
from convtime.timing.plot import Spread, times_panel
from convtime.view.figure import Figure, labels
from convtime.view.page import Block, Details, Line, Sentences, Table
from convtime.view.wording import counted, format_seconds, printable

_MOST_REGIONS = 60  # that are drawn
_HOST = ("host, mean", "host, least to most")
_KERNEL = ("kernels, mean", "kernels, least to most", "of all", "launches")


def line(recording: Recording) -> str:
    if math.isnan(recording.seconds):
        return "still running"
    entries = printable(counted(len(recording.entries), "entry", "entries"))
    text = f"of {format_seconds(recording.seconds)}: {entries} of regions"
    if recording.method == "kernel":
        launched = counted(len(recording.work), "launch", "launches")
        text += f", {format_seconds(recording.kernel_seconds)} in {launched}"
    return f"{text}, {recording.method}"


def printed(recording: Recording) -> Iterator[Block]:
    if math.isnan(recording.seconds):
        yield Line(f"a recording that is {line(recording)}", role="answer")
        return
    kernel = _KERNEL if recording.method == "kernel" else ()
    headers = ("region", "entries", *kernel, *_HOST)
    yield Table(headers, _rows(recording), right=headers[1:])
    if recording.fault:
        incomplete = f"INCOMPLETE, GPU times are too short: {recording.fault}"
        yield Sentences([incomplete], role="caution")
    yield Sentences([_amount(recording)], tight=bool(recording.fault), role="answer")
    if recording.ambiguous:
        ambiguous = (
            f"{counted(recording.ambiguous, 'launch belongs', 'launches belong')} to no region, "
            "since several threads or tasks were in regions, and the issuing one is unknown"
        )
        yield Sentences([ambiguous], tight=True, role="caution")


def details(recording: Recording) -> Iterator[Block]:
    yield from printed(recording)
    for region in recording.regions:
        if region.activities:
            rows = [
                (format_seconds(activity.median), activity.label) for activity in region.activities
            ]
            work = Table(("median", "kernel, copy or memset"), rows, right=("median",))
            yield Details([work], title="/".join(region.path))


def _rows(recording: Recording) -> Iterator[tuple[str, ...]]:
    for region in recording.regions:
        yield (
            "  " * (len(region.path) - 1) + region.name,
            str(len(region.host_seconds)),
            *(_kernel_cells(region, recording) if recording.method == "kernel" else ()),
            *_time_cells(region.host_seconds),
        )


def _kernel_cells(region: RegionTimes, recording: Recording) -> tuple[str, ...]:
    whole = recording.kernel_seconds
    share = math.fsum(region.kernel_seconds) / whole if whole else 0.0
    launches = sum(
        seconds is not None for activity in region.activities for seconds in activity.seconds
    )
    each = launches / len(region.host_seconds)
    return (*_time_cells(region.kernel_seconds), f"{share:.1%}", f"{each:.4g}")


def _time_cells(seconds: Sequence[float]) -> tuple[str, str]:
    least, most = (format_seconds(end(seconds)) for end in (min, max))
    return format_seconds(statistics.fmean(seconds)), f"{least} .. {most}"


def _amount(recording: Recording) -> str:
    text = f"recorded for {format_seconds(recording.seconds)}"
    if recording.method == "kernel":
        outside = recording.outside
        lasted = math.fsum(work.seconds for work in outside)
        text += (
            f": {format_seconds(recording.kernel_seconds)} of kernels, copies and memsets, "
            f"including {format_seconds(lasted)} outside regions "
            f"({counted(len(outside), 'launch', 'launches')})"
        )
    else:
        text += ": host times only"
        text += f", since {recording.method_reason}" if recording.method_reason else ""
    return text


def figures(recording: Recording) -> Iterator[Figure]:
    if not recording.entries:
        return
    regions = recording.regions
    shown = regions[:_MOST_REGIONS]
    times = {"host": [_spread(region.host_seconds) for region in shown]}
    if recording.method == "kernel":
        times["GPU work"] = [_spread(region.kernel_seconds) for region in shown]
    left_out = f" {len(regions) - len(shown):,} other regions are not shown."
    yield Figure(
        title="Times of regions",
        description=(
            f"Times of the entries of {counted(len(shown), 'region')}: {' and '.join(times)}."
            + left_out * (len(shown) < len(regions))
        ),
        view=times_panel(labels("/".join(region.path) for region in shown), times),
        key="dot: median of the entries; bars: quartiles, minimum to maximum",
    )


def _spread(seconds: Sequence[float]) -> Spread | None:
    if not seconds:
        return None
    least, low, median, high, most = np.quantile(seconds, (0, 0.25, 0.5, 0.75, 1)).tolist()
    return Spread(median, low, high, least, most)
