"""The device work of a call: its kernels, copies and memsets."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable

from convtime.view.wording import format_seconds

# Templates that are identified by their argument, not by their name.
_WRAPPERS = re.compile(r"Kernel2?|(unrolled_|vectorized_)?elementwise_kernel(_with_index)?")
_FUNCTOR = re.compile(r"\b\w*(?:Functor\w*|_kernel_cuda|_functor)\b")
_TOO_GENERAL = re.compile(r"kernel(_helper_stage_\d+)?|Kernel2?")
# The rest of a cuDNN or cuBLAS kernel's name after its tile size.
_BEHIND_THE_TILE = re.compile(r"(_tile(?:size)?\d+x[\dx]+).*")
_MANGLED_NAME = re.compile(r"([1-9]\d{0,3})([A-Za-z_])")


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


def shorten(name: str) -> str:
    """Return a kernel's name without return type, namespaces, arguments and suffix after its tile.

    A kernel that has no such short name keeps its full name.
    """
    if name.startswith("_ZN"):
        return _short_mangled_name(name)
    function, arguments = _split(name.replace("(anonymous namespace)::", ""))
    scope, _, base = function.rpartition(" ")[2].rpartition("::")
    if _WRAPPERS.fullmatch(base) and arguments:
        functor = _FUNCTOR.search(arguments)
        inner = functor[0] if functor else _split(arguments)[0].rpartition("::")[2]
        if base.startswith("Kernel"):
            return inner or base
        return f"{base}, {inner}" if functor else base
    if _TOO_GENERAL.fullmatch(base) and scope:
        base = f"{scope.rpartition('::')[2]}::{base}"
    return _BEHIND_THE_TILE.sub(r"\1", base) or name


def _split(name: str) -> tuple[str, str]:
    """Split off the template arguments from a function's qualified name with its return type."""
    depth = 0
    outside: list[str] = []
    inside: list[str] = []
    for character in name:
        if depth == 0 and character in "(,":
            break
        depth -= character == ">"
        (inside if depth else outside).append("" if character in "<>" and not depth else character)
        depth += character == "<"
    return "".join(outside), "".join(inside)


def _short_mangled_name(name: str) -> str:
    """Return the template argument of a mangled wrapper (cutlass::Kernel<…>), or else its name."""
    parts, position = [], 0
    while match := _MANGLED_NAME.search(name, position):
        position = match.start(2) + int(match[1])
        parts.append(name[match.start(2) : position])
    if "Kernel" in parts:
        parts = [part for part in parts[parts.index("Kernel") + 1 :] if part[0].isupper()]
        return parts[0] if parts else "Kernel"
    return max(parts, key=len, default=name)
