"""What the device does in a call: its kernels, copies and memsets."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable

from convtime.results.kernel_names import shorten
from convtime.results.units import format_seconds


@dataclasses.dataclass(frozen=True)
class DeviceActivity:
    """One kernel, copy or memset that calls have in common, and how long it took in each.

    Attributes:
        kind: ``kernel``, ``memcpy`` or ``memset``.
        name: the kernel's name; empty for the others.
        grid: blocks of the launch, in x, y and z.
        block: threads of a block, in x, y and z.
        registers_per_thread: registers that a thread uses.
        shared_memory_bytes: shared memory of a block, static and dynamic.
        bytes: bytes copied or set; 0 for a kernel.
        seconds: its duration in each sample, None in a sample without it.
        device: the number of the GPU that it ran on; None where that was not recorded.
        streams: the streams that it was seen on, by CUPTI's numbers; empty where not recorded.
    """

    kind: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    shared_memory_bytes: int
    bytes: int
    seconds: tuple[float | None, ...]
    device: int | None = None
    streams: tuple[int, ...] = ()

    @property
    def median(self) -> float:
        """The median of its durations, in seconds; not a number where none is known."""
        known = [duration for duration in self.seconds if duration is not None]
        return statistics.median(known) if known else math.nan

    @property
    def launch(self) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
        """What of it is the same where the same is launched: all but time and resources."""
        return self.kind, self.name, self.grid, self.block

    @property
    def short_name(self) -> str:
        """A kernel's name without what only a compiler needs; else its kind."""
        return shorten(self.name) if self.kind == "kernel" else self.kind

    @property
    def label(self) -> str:
        """Short name, grid and block in one text."""
        if self.kind != "kernel":
            return self.kind
        grid, block = ("×".join(map(str, sizes)) for sizes in (self.grid, self.block))
        return f"{self.short_name}, grid {grid}, block {block}"

    def __str__(self) -> str:
        return f"{self.label}, {format_seconds(self.median)}"


def same_launches(first: Iterable[DeviceActivity], second: Iterable[DeviceActivity]) -> bool:
    """Whether two calls launch the same, in whatever order."""
    # Groups run on several streams at once, and which kernel is first varies.
    launches = (sorted(activity.launch for activity in call) for call in (first, second))
    return next(launches) == next(launches)
