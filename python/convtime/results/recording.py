"""What ran while a program was recorded, and in which of its regions."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from convtime.core import codec
from convtime.core.files import write_file
from convtime.results.activity import DeviceActivity
from convtime.results.exchange.chrome_trace import Slice, chrome_trace


@dataclasses.dataclass(frozen=True)
class Launch:
    """What is the same each time that a kernel is launched, or memory copied or set, in one way.

    Its attributes are those of :class:`convtime.results.activity.DeviceActivity`.
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
        launch: which of the recording's ``launches`` it is.
        start: when it began, in seconds since the recording did.
        end: when it ended.
        issued: when the call was made that issued it.
        thread: the thread that made that call; see ``Recording.threads``.
        stream: the stream that it ran on, by CUPTI's numbers.
        entry: which of the recording's ``entries`` it belongs to; None for none of them.
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
        """How long it took."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One time that a thread was in a region.

    Attributes:
        name: the region's.
        thread: the thread; see ``Recording.threads``.
        parent: which of the recording's ``entries`` it lies in; None for none of them.
        start: when it was entered, in seconds since the recording began.
        end: when it was left; the recording's end where it was not.
    """

    name: str
    thread: int
    parent: int | None
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long the host was in it."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True)
class RegionTimes:
    """What a region took, over all of its entries.

    Attributes:
        path: its name after those of the regions that it lies in.
        host_seconds: for each entry, the time that the host spent in it.
        kernel_seconds: for each entry, the time of the kernels, copies and memsets that were issued
            in it, also in regions within it, added up; empty where these were not recorded.
        activities: what these were, with the time of each in every entry.
    """

    path: tuple[str, ...]
    host_seconds: tuple[float, ...]
    kernel_seconds: tuple[float, ...]
    activities: tuple[DeviceActivity, ...]

    @property
    def name(self) -> str:
        """The region's own name."""
        return self.path[-1]


@dataclasses.dataclass(repr=False)
class Recording(codec.Stored):
    """What ran while a block of code was recorded; see :func:`convtime.record`.

    It is empty until the block is left.

    Attributes:
        method: ``kernel`` where the work of GPUs was recorded, or ``cpu`` for the host's times
            alone.
        method_requested: what was asked for.
        method_reason: why ``method`` is ``cpu`` where that was not asked for; else empty.
        seconds: how long it lasted, in the host's time.
        entries: of regions, in the order in which they were entered.
        launches: what was launched, each once.
        work: what the GPUs did, in the order in which it began.
        threads: names of threads by their numbers, as far as they are known.
        ambiguous: how many of ``work`` may belong to several regions, and so belong to none: issued
            by a thread without regions while several threads or tasks were in one, or on a thread
            whose event loop does not tell when it switches between tasks.
        fault: what is wrong with CUPTI's records; empty where each launch has its own. Where some
            are missing, times of GPUs are too short.
        provenance: hardware, software and source state.
    """

    SCHEMA: ClassVar[str] = "1.0"

    method: str = "cpu"
    method_requested: str = "auto"
    method_reason: str = ""
    seconds: float = math.nan
    entries: tuple[Entry, ...] = ()
    launches: tuple[Launch, ...] = ()
    work: tuple[Work, ...] = ()
    threads: Mapping[int, str] = dataclasses.field(default_factory=dict)
    ambiguous: int = 0
    fault: str = ""
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def regions(self) -> tuple[RegionTimes, ...]:
        """Every region, those within one after it, in the order of their first entries."""
        entries: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
        for number, path in enumerate(self._paths()):
            entries[path].append(number)
        inside = self._work_inside()
        first = {path: numbers[0] for path, numbers in entries.items()}
        # A path's regions lie side by side, each before those within it.
        order = sorted(entries, key=lambda path: [first[path[: n + 1]] for n in range(len(path))])
        return tuple(self._times(path, entries[path], inside) for path in order)

    def region(self, *path: str) -> RegionTimes:
        """The region of that path of names, or of a path that ends so.

        Raises:
            KeyError: there is none, or there are several whose paths end so.
        """
        regions = self.regions
        found = [each for each in regions if each.path == path]
        found = found or [each for each in regions if each.path[-len(path) :] == path]
        if len(found) != 1:
            known = ", ".join("/".join(each.path) for each in regions) or "none"
            raise KeyError(
                f"a recording's region must be named by enough of its path to be the only one, got "
                f"{'/'.join(path)!r}; there are {known}"
            )
        return found[0]

    @property
    def outside(self) -> tuple[Work, ...]:
        """What GPUs did that belongs to no region."""
        return tuple(work for work in self.work if work.entry is None)

    @property
    def kernel_seconds(self) -> float:
        """Time of all that GPUs did, added up."""
        return math.fsum(work.seconds for work in self.work)

    def ancestors(self, entry: int | None) -> Iterator[int]:
        """An entry, and those that it lies in, from the innermost on; nothing for None."""
        while entry is not None:
            yield entry
            entry = self.entries[entry].parent

    def activities_of(self, calls: Sequence[Iterable[Work]]) -> tuple[DeviceActivity, ...]:
        """What calls did, as ``Measurement.activities`` has it: times of each activity by call."""
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
        recorded = self.method == "kernel"
        return RegionTimes(
            path=path,
            host_seconds=tuple(self.entries[number].seconds for number in numbers),
            kernel_seconds=tuple(math.fsum(work.seconds for work in call) for call in calls)
            if recorded
            else (),
            activities=self.activities_of(calls),
        )

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that Perfetto (ui.perfetto.dev) and chrome://tracing open.

        It has the regions of each thread, and the kernels, copies and memsets of each stream, with
        an arrow from the region that issued each. It is written whole or not at all.

        Raises:
            ValueError: says why it cannot be written.
        """
        write_file(path, chrome_trace(self._slices(), self._tracks()))

    def _tracks(self) -> dict[tuple[str, int], str]:
        tracks = {("host", thread): name for thread, name in self.threads.items()}
        for work in self.work:
            tracks[self._gpu(work), work.stream] = f"stream {work.stream}"
        return tracks

    def _gpu(self, work: Work) -> str:
        return f"GPU {self.launches[work.launch].device}"

    def _slices(self) -> Iterator[Slice]:
        for entry in self.entries:
            yield Slice(("host", entry.thread), entry.name, entry.start, entry.end)
        paths = self._paths()
        short = functools.cache(lambda number: self._named(self.launches[number]))
        for work in self.work:
            launch = self.launches[work.launch]
            told: dict[str, Any] = {
                "name": launch.name,
                "grid": list(launch.grid),
                "block": list(launch.block),
                "registers per thread": launch.registers_per_thread,
                "shared memory (bytes)": launch.shared_memory_bytes,
            }
            if launch.kind != "kernel":
                told = {"bytes": launch.bytes}
            issued = None
            if work.entry is not None:
                told["region"] = "/".join(paths[work.entry])
                # Arrows begin in slices of their own thread: of others', the region is not.
                if self.entries[work.entry].thread == work.thread:
                    issued = (("host", work.thread), work.issued)
            track = (self._gpu(work), work.stream)
            yield Slice(track, short(work.launch), work.start, work.end, told, issued)

    @staticmethod
    def _named(launch: Launch) -> str:
        fields = dataclasses.asdict(launch)
        return DeviceActivity(**fields, seconds=()).short_name

    def __str__(self) -> str:
        """A table of the regions, and what is to be known beside it."""
        from convtime.show.recording import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.recording import line

        return f"<convtime.Recording {line(self)}>"

    def details(self) -> str:
        """As text, with the kernels of each region."""
        from convtime.show.recording import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.recording import html_sheet

        return html_sheet(self)
