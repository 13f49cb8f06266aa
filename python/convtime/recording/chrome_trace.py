"""Chrome's trace event format, which Perfetto can open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Track = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Slice:
    """A time span on a track.

    Attributes:
        track: its track: a group's name, and a number within the group.
        name: its label.
        start: start time in seconds.
        end: end time in seconds.
        told: details that are shown when it is selected.
        issued: track and time where an arrow to it starts.
    """

    track: Track
    name: str
    start: float
    end: float
    told: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    issued: tuple[Track, float] | None = None


def chrome_trace(slices: Iterable[Slice], tracks: Mapping[Track, str]) -> str:
    """Return the content of a trace file.

    Args:
        slices: the slices, in any order.
        tracks: names by track; groups are displayed in the order of their first track.
    """
    # Numbers start at 1: process 0 is the system's idle process.
    names = dict.fromkeys(name for name, _ in tracks)
    groups = {name: number for number, name in enumerate(names, start=1)}
    events = list(_names(tracks, groups))
    for number, each in enumerate(slices):
        events += _events(each, number, groups)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, ensure_ascii=False)


def _names(tracks: Mapping[Track, str], groups: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    def named(what: str, place: Mapping[str, int], told: Mapping[str, Any]) -> dict[str, Any]:
        return {"ph": "M", "name": what, **place, "args": told}

    for group, number in groups.items():
        yield named("process_name", {"pid": number}, {"name": group})
        yield named("process_sort_index", {"pid": number}, {"sort_index": number})
    for (group, thread), name in tracks.items():
        yield named("thread_name", {"pid": groups[group], "tid": thread}, {"name": name})


def _events(each: Slice, number: int, groups: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    def at(track: Track, seconds: float) -> dict[str, Any]:
        group, thread = track
        # In microseconds, rounded to the nanosecond.
        return {"pid": groups[group], "tid": thread, "ts": round(1e6 * seconds, 3)}

    place = at(each.track, each.start)
    lasted = round(1e6 * (each.end - each.start), 3)
    yield {"ph": "X", "name": each.name, "dur": lasted, **place, "args": dict(each.told)}
    if each.issued is not None:
        flow = {"name": "issues", "cat": "issues", "id": number}
        yield {"ph": "s", **flow, **at(*each.issued)}
        yield {"ph": "f", "bp": "e", **flow, **place}
