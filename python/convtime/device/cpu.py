"""Lists of CPUs, and their caches, as the system reports them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from convtime.core.checks import require

_CPUS = Path("/sys/devices/system/cpu")


def cache_bytes(cpus: Iterable[int], root: Path = _CPUS) -> int | None:
    """Return the total data cache size of the CPUs over all levels, or None if it is unknown.

    Every cache counts once: several threads may work in one call, and each fills its core's caches.
    """
    sizes: dict[tuple[str, str], int] = {}
    for cpu in cpus:
        for cache in root.glob(f"cpu{cpu}/cache/index*"):
            try:
                level, kind, size, shared = (
                    (cache / name).read_text().strip()
                    for name in ("level", "type", "size", "shared_cpu_list")
                )
            except OSError:  # the kernel has no file for values that the firmware does not report
                return None
            if kind != "Instruction":
                sizes[level + kind, shared] = int(size.removesuffix("K")) * 1024
    return sum(sizes.values()) or None


def parse_cpus(text: str) -> set[int]:
    """Parse a CPU list in the kernel's format, e.g. ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def written_cpus(cpus: Iterable[int]) -> str:
    """Write a CPU list in the kernel's format: reverse :func:`parse_cpus`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


def by_core(cpus: Iterable[int], root: Path = _CPUS) -> list[int]:
    """Sort CPUs so that the hardware threads of a core are next to each other."""
    found = {}
    for cpu in cpus:
        try:
            siblings = (root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        found[cpu] = min(parse_cpus(siblings))
    return sorted(found, key=lambda cpu: (found[cpu], cpu))


def check_pin(cpu: int | None) -> None:
    """Raise InputError for a CPU that this thread may not run on."""
    allowed = os.sched_getaffinity(0)
    require(
        cpu is None or cpu in allowed,
        f"pin must be one of the {len(allowed)} CPUs that this thread may run on (between "
        f"{min(allowed)} and {max(allowed)}), got {cpu}",
    )
