"""NUMA placement of tensors' memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from convtime.device.cpu import parse_cpus

_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}  # the system call's number
_PAGES_OF_A_TENSOR = 64


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
    found = _nodes_of(addresses)
    if found is None:
        return None, "the system does not report the NUMA node of memory pages"
    known = [node for node in found if node >= 0]  # negative: the page has not been touched
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
