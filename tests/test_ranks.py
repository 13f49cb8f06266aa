"""Calls that talk to other ranks are refused on each of them, in the same words."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
import torch

from convtime import time_op

TIMEOUT_SECONDS = 120

RANK = """
import datetime, json, sys, warnings
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from convtime import compare, time_op

warnings.simplefilter("ignore")
x = torch.ones(100)

def run(rank, world_size, port):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size,
        timeout=datetime.timedelta(seconds=30),
    )
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    calls = {
        "all_reduce": lambda: dist.all_reduce(x),
        "backward": lambda: layer(torch.ones(2, 4)).sum().backward(),
        "functional": lambda: functional.all_reduce(x, "sum", dist.group.WORLD).sum(),
        "send": lambda: dist.send(x, 1) if rank == 0 else dist.recv(x, 0),
    }
    said = {}
    for name, call in calls.items():
        if world_size == 1 and name == "send":
            continue
        try:
            said[name] = time_op(call, max_samples=10, stop="count").stop_reason
        except ValueError as error:
            said[name] = str(error)
    try:
        second = {"relu": lambda: torch.relu(x), "all_reduce": lambda: dist.all_reduce(x)}
        compared = compare(second, check=None, max_samples=10)
        said["second candidate"] = "compared"
    except ValueError as error:
        said["second candidate"] = str(error)
    time_op(torch.relu, x, max_samples=10, stop="count")  # without communication: is timed
    total = torch.ones(1)
    dist.all_reduce(total)
    print(json.dumps([said, total.item()]))
    dist.destroy_process_group()

rank, alone, together = map(int, sys.argv[1:])
run(0, 1, alone)
run(rank, 2, together)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def outputs() -> list[list[str]]:
    """What each of two processes prints, as the only rank and then as one of two."""
    together = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(free_port()), str(together)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        found = [rank.communicate(timeout=TIMEOUT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), found
    return [out.splitlines()[-2:] for out, _ in found]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed")
def test_every_rank_refuses_communication_in_the_same_words_and_goes_on() -> None:
    (alone, first), (_, second) = outputs()
    assert first == second  # word for word
    assert first.count("torch.distributed") == 5
    assert first.endswith("2.0]")
    # A single rank waits for nobody.
    assert "torch.distributed" not in alone
    assert alone.count("max_samples") == 3


def test_without_ranks_nothing_is_refused() -> None:
    assert time_op(torch.relu, torch.ones(4), max_samples=10, stop="count").median > 0
