"""Lists of CPUs, their caches and their NUMA nodes, as the system reports them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from convtime.core.checks import require

_CPUS = Path("/sys/devices/system/cpu")
_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}  # the system call's number
_PAGES_OF_A_TENSOR = 64


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
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


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
    cores = {}
    for cpu in cpus:
        try:
            siblings = (root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        cores[cpu] = min(parse_cpus(siblings))
    return sorted(cores, key=lambda cpu: (cores[cpu], cpu))


def check_pin(cpu: int | None) -> None:
    """Raise InputError for a CPU that this thread may not run on."""
    if cpu is not None:
        allowed = os.sched_getaffinity(0)
        require(
            cpu in allowed,
            f"pin must be one of the {len(allowed)} CPUs that this thread may run on (between "
            f"{min(allowed)} and {max(allowed)}), got {cpu}",
        )


def remote_share(
    tensors: Sequence[torch.Tensor], root: Path = Path("/")
) -> tuple[float | None, str]:
    """Return the share of sampled tensor pages on other NUMA nodes than the calling thread's core.

    The share is None on a machine with one node, and if no page could be sampled. The string says
    why the share is unknown on a machine with several nodes; otherwise it is empty.
    """
    nodes = {
        int(folder.name[4:]): parse_cpus((folder / "cpulist").read_text())
        for folder in (root / "sys/devices/system/node").glob("node[0-9]*")
    }
    core = ctypes.CDLL(None).sched_getcpu()
    own = [node for node, cpus in nodes.items() if core in cpus]
    if len(nodes) < 2 or not own:
        return None, ""
    addresses = [
        address
        for tensor in tensors
        if tensor.device.type == "cpu" and tensor.numel()
        for address in _pages_of(tensor)
    ]
    page_nodes = _nodes_of(addresses)
    if page_nodes is None:
        return None, "the system does not report the NUMA node of memory pages"
    known = [node for node in page_nodes if node >= 0]  # negative: the page has not been touched
    return (sum(node not in own for node in known) / len(known) if known else None), ""


def _pages_of(tensor: torch.Tensor) -> list[int]:
    begin = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    step = max(tensor.nbytes // _PAGES_OF_A_TENSOR // mmap.PAGESIZE, 1) * mmap.PAGESIZE
    return list(range(begin, begin + max(tensor.nbytes, 1), step))[:_PAGES_OF_A_TENSOR]


def _nodes_of(addresses: Sequence[int]) -> list[int] | None:
    """Return each page's node (negative if it has none), or None if the system does not tell."""
    number = _MOVE_PAGES.get(os.uname().machine)
    if number is None:
        return None
    pages = (ctypes.c_void_p * len(addresses))(*addresses)
    status = (ctypes.c_int * len(addresses))()
    failed = ctypes.CDLL(None).syscall(
        ctypes.c_long(number), 0, ctypes.c_ulong(len(addresses)), pages, None, status, 0
    )
    return None if failed else list(status)
