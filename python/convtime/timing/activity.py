"""The device work of a call: its kernels, copies and memsets."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable

from convtime.timing.kernel_names import shorten
from convtime.view.wording import format_seconds


@dataclasses.dataclass(frozen=True)
class DeviceActivity:
    """One kernel, copy or memset that all calls share, and its duration in each.

    Attributes:
        kind: ``kernel``, ``memcpy`` or ``memset``.
        name: the kernel's name; empty for copies and memsets.
        grid: blocks of the launch, in x, y and z.
        block: threads of a block, in x, y and z.
        registers_per_thread: registers per thread.
        shared_memory_bytes: shared memory of a block, static and dynamic.
        bytes: bytes copied or set; 0 for a kernel.
        seconds: duration in each sample; None in a sample without it.
        device: index of the GPU that it ran on; None if it was not recorded.
        streams: CUPTI's ids of the streams that it ran on; empty if not recorded.
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
        """The median duration in seconds; NaN if no duration is known."""
        known = [duration for duration in self.seconds if duration is not None]
        return statistics.median(known) if known else math.nan

    @property
    def launch(self) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
        """The fields that identify a launch: kind, name, grid and block."""
        return self.kind, self.name, self.grid, self.block

    @property
    def short_name(self) -> str:
        """A kernel's name in short form, or the kind of other work."""
        return shorten(self.name) if self.kind == "kernel" else self.kind

    @property
    def label(self) -> str:
        """Short name, grid and block in one string."""
        if self.kind != "kernel":
            return self.kind
        grid, block = ("×".join(map(str, sizes)) for sizes in (self.grid, self.block))
        return f"{self.short_name}, grid {grid}, block {block}"

    def __str__(self) -> str:
        return f"{self.label}, {format_seconds(self.median)}"


def same_launches(first: Iterable[DeviceActivity], second: Iterable[DeviceActivity]) -> bool:
    """Return whether two calls launch the same work, in any order."""
    # Groups run concurrently on several streams, so the order of their kernels varies.
    launches = (sorted(activity.launch for activity in call) for call in (first, second))
    return next(launches) == next(launches)
