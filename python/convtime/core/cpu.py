"""The CPU as the system describes it: its name, what decides on its clock, and its caches."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@functools.cache
def cpu_name() -> str:
    """The processor's model name, or its architecture where the system does not tell more."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def governors(cpus: Iterable[int], root: Path = _CPUS) -> tuple[str, ...]:
    """What decides on the CPUs' clocks, e.g. "performance"; several names where they differ.

    None at all where the system does not say, as in most virtual machines.
    """
    paths = [root / f"cpu{cpu}" / "cpufreq" / "scaling_governor" for cpu in cpus]
    return tuple(sorted({path.read_text().strip() for path in paths if path.exists()}))


def huge_pages(setting: Path = _HUGE_PAGES) -> str | None:
    """The setting of transparent huge pages: ``always``, ``madvise`` or ``never``; else None."""
    try:
        chosen = re.search(r"\[(\w+)\]", setting.read_text())
    except OSError:  # the kernel was built without them
        return None
    return chosen and chosen[1]


def cache_bytes(cpus: Iterable[int], root: Path = _CPUS) -> int | None:
    """What the CPUs' data caches of all levels hold, each counted once; None if that is not known.

    Each, since several threads may work in a call, and each of them leaves data in its own.
    """
    sizes: dict[tuple[str, str], int] = {}
    for cpu in cpus:
        for cache in root.glob(f"cpu{cpu}/cache/index*"):
            try:
                level, kind, size, shared = (
                    (cache / name).read_text().strip()
                    for name in ("level", "type", "size", "shared_cpu_list")
                )
            except OSError:  # the kernel has no file for what the firmware does not tell
                return None
            if kind != "Instruction":
                sizes[level + kind, shared] = int(size.removesuffix("K")) * 1024
    return sum(sizes.values()) or None


def parse_cpus(text: str) -> set[int]:
    """The CPUs of a list in the kernel's form, e.g. ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def check_pin(cpu: int | None) -> None:
    """Raises ValueError for a CPU that this thread may not run on."""
    allowed = os.sched_getaffinity(0)
    if not (cpu is None or cpu in allowed):
        raise ValueError(
            f"pin must be one of the {len(allowed)} CPUs that this thread may run on, which lie "
            f"between {min(allowed)} and {max(allowed)}, got {cpu}"
        )
