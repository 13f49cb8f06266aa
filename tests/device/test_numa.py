"""Pages of tensors on other NUMA nodes, of nodes in a folder and of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from convtime.device import numa


def nodes(root: Path, *lists: str) -> Path:
    for number, cpus in enumerate(lists):
        folder = root / "sys/devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    return root


def test_memory_of_another_numa_node_is_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = f"0-{os.cpu_count()}"
    assert numa.remote_share([torch.ones(3)], nodes(tmp_path / "one", every)) == (None, "")
    two = nodes(tmp_path / "two", every, f"{(os.cpu_count() or 1) + 1}")
    # A quarter is elsewhere; pages without a node do not count.
    monkeypatch.setattr(numa, "_nodes_of", lambda pages: [1, 0, 0, 0] * 10 + [-2] * 3)
    assert numa.remote_share([torch.ones(1 << 20)], two) == (0.25, "")
    monkeypatch.setattr(numa, "_nodes_of", lambda _: None)
    share, why_not = numa.remote_share([torch.ones(3)], two)
    assert share is None
    assert "NUMA" in why_not


def test_the_node_of_touched_pages_is_told_by_the_system() -> None:
    found = numa._nodes_of(numa._pages_of(torch.ones(1 << 20)))
    if found is None:
        pytest.skip("this system does not tell")
    assert len(found) == 64
    assert min(found) >= 0
