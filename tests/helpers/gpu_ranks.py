"""What two GPUs do for tests/distributed/test_measure.py, by torchrun; rank 0 prints it."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics

import torch
import torch.distributed as dist

from convtime import time_op

SIZES = (1 << 10, 1 << 20, 1 << 26)
BACK_TO_BACK = 50


def by_events(x: torch.Tensor) -> float:
    """Seconds of an all-reduce, of many back to back."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for _ in range(5):
        torch.ops.convtime.spin_ns(10_000_000)  # until all calls are issued
        begin.record()
        for _ in range(BACK_TO_BACK):
            dist.all_reduce(x)
        end.record()
        end.synchronize()
        seconds.append(1e-3 * begin.elapsed_time(end) / BACK_TO_BACK)
    return statistics.median(seconds)


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    found: dict[str, tuple[float | None, ...]] = {}
    for nbytes in SIZES:
        x = torch.zeros(nbytes // 4, device="cuda")
        measured = time_op(dist.all_reduce, x, cache="warm").ranks
        assert measured is not None
        uncertainty = measured.clock_uncertainty
        found[str(nbytes)] = (measured.transfer, by_events(x), measured.bus_bandwidth, uncertainty)

    x = torch.zeros(1000, device="cuda")

    def late() -> None:
        if rank == 1:
            torch.ops.convtime.spin_ns(1_000_000)
        dist.all_reduce(x)

    skewed = time_op(late, cache="warm").ranks
    assert skewed is not None
    waits = [statistics.median(each.waiting_seconds) for each in skewed.ranks]

    step_layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2048, 2048, device=rank))
    batch = torch.randn(512, 2048, device="cuda")
    step = time_op(lambda: step_layer(batch).sum().backward()).ranks
    assert step is not None
    communication = step.ranks[rank].communication
    assert communication is not None, step.ranks[rank].communication_reason
    if rank == 0:
        told = {
            "all_reduce": found,
            "skew": max(waits),
            "uncertainty": skewed.clock_uncertainty,
            "communication": dataclasses.asdict(communication),
            "uuids": [each.gpu_uuid for each in step.ranks],
        }
        print(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
