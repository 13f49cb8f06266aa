"""Work that ran while a program was recorded, by region."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from convtime.core import codec
from convtime.core.errors import InputError
from convtime.core.files import extension_of, write_file
from convtime.timing.activity import DeviceActivity
from convtime.view.shown import Shown


@dataclasses.dataclass(frozen=True)
class Launch:
    """The properties of a kernel launch, copy or memset that do not change between repetitions.

    The attributes are those of :class:`convtime.timing.activity.DeviceActivity`.
    """

    kind: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    shared_memory_bytes: int
    bytes: int
    device: int


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """One kernel, copy or memset.

    Attributes:
        launch: its index in the recording's ``launches``.
        start: start time, in seconds since the start of the recording.
        end: end time.
        issued: time of the call that issued it.
        thread: thread that made that call; see ``Recording.threads``.
        stream: CUPTI's id of the stream that it ran on.
        entry: index of its region entry in the recording's ``entries``; None outside all regions.
    """

    launch: int
    start: float
    end: float
    issued: float
    thread: int
    stream: int
    entry: int | None

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One stay of a thread in a region.

    Attributes:
        name: name of the region.
        thread: the thread; see ``Recording.threads``.
        parent: index of the enclosing entry in the recording's ``entries``; None for none.
        start: time at which it was entered, in seconds since the start of the recording.
        end: time at which it was left; the end of the recording if it was not left.
    """

    name: str
    thread: int
    parent: int | None
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """The host's time in it."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True)
class RegionTimes:
    """The times of a region, over all of its entries.

    Attributes:
        path: names of the enclosing regions, followed by its own.
        host_seconds: for each entry, the host's time in it.
        kernel_seconds: for each entry, the summed durations of the kernels, copies and memsets that
            were issued in it, including nested regions; empty if these were not recorded.
        activities: this device work, with the time of each activity in every entry.
    """

    path: tuple[str, ...]
    host_seconds: tuple[float, ...]
    kernel_seconds: tuple[float, ...]
    activities: tuple[DeviceActivity, ...]

    @property
    def name(self) -> str:
        """The region's name, without its path."""
        return self.path[-1]


def _check_indices(of: str, indices: set[Any], count: int) -> None:
    if indices and not 0 <= min(indices) <= max(indices) < count:
        raise InputError(
            f"work must be of the {count} {of}, got the indices {min(indices)} to {max(indices)}"
        )


@dataclasses.dataclass(repr=False)
class Recording(codec.Stored, Shown, show="convtime.recording.show"):
    """A recording of a block of code; see :func:`convtime.record`.

    It is empty until the block ends.

    Attributes:
        method: ``kernel`` if GPU work was recorded, or ``cpu`` for the host's times only.
        method_requested: the requested method.
        method_reason: why ``method`` is ``cpu`` although it was not requested; otherwise empty.
        seconds: duration of the recording on the host.
        entries: region entries, in the order in which they were entered.
        launches: the different launches, each once.
        work: work of the GPUs, in order of start time.
        threads: known names of threads, by number.
        ambiguous: number of entries in ``work`` that could belong to several regions and are
            assigned to none. They were issued by a thread without regions while several threads or
            tasks were in one, or on a thread whose event loop does not report task switches.
        fault: error in CUPTI's records; empty if each launch has its record. If records are
            missing, GPU times are too short.
        provenance: hardware, software and source state.
    """

    method: str = "cpu"
    method_requested: str = "auto"
    method_reason: str = ""
    seconds: codec.Number = math.nan
    entries: tuple[Entry, ...] = ()
    launches: tuple[Launch, ...] = ()
    work: tuple[Work, ...] = ()
    threads: Mapping[int, str] = dataclasses.field(default_factory=dict)
    ambiguous: int = 0
    fault: str = ""
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, entry in enumerate(self.entries):
            if entry.parent is not None and not 0 <= entry.parent < number:
                raise InputError(f"entry {number} must be in an earlier one, got {entry.parent}")
        _check_indices("launches", {work.launch for work in self.work}, len(self.launches))
        _check_indices("entries", {work.entry for work in self.work} - {None}, len(self.entries))

    @property
    def regions(self) -> tuple[RegionTimes, ...]:
        """All regions, each followed by its nested regions, in the order of their first entries."""
        entries: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
        for number, path in enumerate(self._paths()):
            entries[path].append(number)
        inside = self._work_inside()
        first = {path: numbers[0] for path, numbers in entries.items()}
        # Sort so that each region comes directly before its nested regions.
        order = sorted(entries, key=lambda path: [first[path[: n + 1]] for n in range(len(path))])
        return tuple(self._times(path, entries[path], inside) for path in order)

    def region(self, *path: str) -> RegionTimes:
        """Return the region with the given path of names, or with a path that ends with it.

        Raises:
            KeyError: no region matches, or several paths end with it.
        """
        regions = self.regions
        matching = [each for each in regions if each.path == path]
        matching = matching or [each for each in regions if each.path[-len(path) :] == path]
        if len(matching) != 1:
            known = ", ".join("/".join(each.path) for each in regions) or "none"
            raise KeyError(
                f"region must be a path, or the end of a path, of exactly one region, got "
                f"{'/'.join(path)!r}; the recording's regions: {known}"
            )
        return matching[0]

    @property
    def outside(self) -> tuple[Work, ...]:
        """GPU work outside all regions."""
        return tuple(work for work in self.work if work.entry is None)

    @property
    def kernel_seconds(self) -> float:
        """Summed duration of all GPU work."""
        return math.fsum(work.seconds for work in self.work)

    def ancestors(self, entry: int | None) -> Iterator[int]:
        """Yield an entry and its enclosing entries, innermost first; nothing for None."""
        while entry is not None:
            yield entry
            entry = self.entries[entry].parent

    def activities_of(self, calls: Sequence[Iterable[Work]]) -> tuple[DeviceActivity, ...]:
        """Return the activities of calls like ``Measurement.activities``, with times by call."""
        columns: dict[tuple[int, int], list[float | None]] = {}
        streams: dict[tuple[int, int], set[int]] = collections.defaultdict(set)
        for call, works in enumerate(calls):
            seen: collections.Counter[int] = collections.Counter()
            for work in works:
                column = (work.launch, seen[work.launch])
                seen[work.launch] += 1
                columns.setdefault(column, [None] * len(calls))[call] = work.seconds
                streams[column].add(work.stream)
        return tuple(
            DeviceActivity(
                **dataclasses.asdict(self.launches[column[0]]),
                seconds=tuple(seconds),
                streams=tuple(sorted(streams[column])),
            )
            for column, seconds in columns.items()
        )

    def _paths(self) -> list[tuple[str, ...]]:
        paths: list[tuple[str, ...]] = []
        for entry in self.entries:
            before = () if entry.parent is None else paths[entry.parent]
            paths.append((*before, entry.name))
        return paths

    def _work_inside(self) -> dict[int, list[Work]]:
        inside: dict[int, list[Work]] = collections.defaultdict(list)
        for work in self.work:
            for entry in self.ancestors(work.entry):
                inside[entry].append(work)
        return inside

    def _times(
        self, path: tuple[str, ...], numbers: Sequence[int], inside: Mapping[int, Sequence[Work]]
    ) -> RegionTimes:
        calls = [inside.get(number, ()) for number in numbers]
        return RegionTimes(
            path=path,
            host_seconds=tuple(self.entries[number].seconds for number in numbers),
            kernel_seconds=tuple(math.fsum(work.seconds for work in call) for call in calls)
            if self.method == "kernel"
            else (),
            activities=self.activities_of(calls),
        )

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace file that Perfetto (ui.perfetto.dev) and chrome://tracing can open.

        It contains the regions of each thread, and the kernels, copies and memsets of each stream,
        with arrows from the issuing regions. The file is written atomically.

        Args:
            path: the file; its extension is ``.json``, or missing.

        Raises:
            ValueError: the file has another extension, or cannot be written; the message says why.
        """
        extension_of(path, (".json",))
        content = {"traceEvents": [*self._trace_events()], "displayTimeUnit": "ns"}
        write_file(path, json.dumps(content, ensure_ascii=False))

    def _trace_events(self) -> Iterator[dict[str, Any]]:
        """Yield the names of the tracks, then the events, in Chrome's trace event format.

        https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
        """
        tracks = {("host", thread): name for thread, name in self.threads.items()}
        tracks |= {(self._gpu(work), work.stream): f"stream {work.stream}" for work in self.work}
        # Numbers start at 1: process 0 is the system's idle process.
        distinct = dict.fromkeys(group for group, _ in tracks)
        groups = {group: number for number, group in enumerate(distinct, start=1)}
        for group, number in groups.items():
            named = {"ph": "M", "pid": number}
            yield {**named, "name": "process_name", "args": {"name": group}}
            yield {**named, "name": "process_sort_index", "args": {"sort_index": number}}
        for (group, thread), name in tracks.items():
            named = {"ph": "M", "pid": groups[group], "tid": thread}
            yield {**named, "name": "thread_name", "args": {"name": name}}

        def at(group: str, thread: int, seconds: float) -> dict[str, Any]:
            # In microseconds, rounded to the nanosecond.
            return {"pid": groups[group], "tid": thread, "ts": round(1e6 * seconds, 3)}

        def event(name: str, seconds: float, where: Mapping[str, Any], args: object) -> Any:
            return {"ph": "X", "name": name, "dur": round(1e6 * seconds, 3), **where, "args": args}

        for entry in self.entries:
            yield event(entry.name, entry.seconds, at("host", entry.thread, entry.start), {})
        paths = self._paths()
        names = [
            DeviceActivity(**dataclasses.asdict(launch), seconds=()).short_name
            for launch in self.launches
        ]
        for number, work in enumerate(self.work):
            launch = self.launches[work.launch]
            args: dict[str, Any] = {
                "name": launch.name,
                "grid": list(launch.grid),
                "block": list(launch.block),
                "registers per thread": launch.registers_per_thread,
                "shared memory (bytes)": launch.shared_memory_bytes,
            }
            if launch.kind != "kernel":
                args = {"bytes": launch.bytes}
            if work.entry is not None:
                args["region"] = "/".join(paths[work.entry])
            where = at(self._gpu(work), work.stream, work.start)
            yield event(names[work.launch], work.seconds, where, args)
            # An arrow must start in a slice of the issuing thread, which must be in the region.
            if work.entry is not None and self.entries[work.entry].thread == work.thread:
                arrow = {"name": "issues", "cat": "issues", "id": number}
                yield {"ph": "s", **arrow, **at("host", work.thread, work.issued)}
                yield {"ph": "f", "bp": "e", **arrow, **where}

    def _gpu(self, work: Work) -> str:
        return f"GPU {self.launches[work.launch].device}"
