"""Groups of metrics, and NVIDIA's names of the metrics in each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

#: Always counted: metrics that do not add up are averaged over launches, weighted by duration.
DURATION: Final = "gpu__time_duration.sum"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of a group.

    Attributes:
        description: property of a kernel that it measures.
        names: its names on different GPUs, the most common first.
    """

    description: str
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Group:
    """Metrics that answer one question about a kernel.

    Attributes:
        description: subject of the question.
        metrics: metrics that answer it.
    """

    description: str
    metrics: tuple[Metric, ...]


def _metric(description: str, *names: str) -> Metric:
    return Metric(description, names)


GROUPS: Final[Mapping[str, Group]] = {
    "time": Group(
        "duration and clock cycles",
        (
            _metric("duration", DURATION),
            _metric("cycles that the longest-running SM had", "sm__cycles_elapsed.max"),
            _metric("cycles with work, mean over the SMs", "sm__cycles_active.avg"),
        ),
    ),
    "dram": Group(
        "traffic with the GPU's memory",
        (
            _metric("bytes read", "dram__bytes_read.sum", "dram__bytes_op_read.sum"),
            _metric("bytes written", "dram__bytes_write.sum", "dram__bytes_op_write.sum"),
            _metric("sectors read", "dram__sectors_read.sum", "dram__sectors_op_read.sum"),
            _metric("sectors written", "dram__sectors_write.sum", "dram__sectors_op_write.sum"),
            _metric("bytes a second", "dram__bytes.sum.per_second"),
            _metric(
                "share of the rate that the memory can sustain",
                "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            ),
        ),
    ),
    "l2": Group(
        "traffic with the L2 cache",
        (
            _metric("sectors read", "lts__t_sectors_op_read.sum"),
            _metric("sectors written", "lts__t_sectors_op_write.sum"),
            _metric("all sectors", "lts__t_sectors.sum"),
            _metric("share of the sectors that were there", "lts__t_sector_hit_rate.pct"),
            _metric(
                "share of the rate that the cache can sustain",
                "lts__throughput.avg.pct_of_peak_sustained_elapsed",
            ),
        ),
    ),
    "sm": Group(
        "throughput of the multiprocessors and the memory system, relative to their peak",
        (
            _metric(
                "busiest part of the SMs, of what it can sustain",
                "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            ),
            _metric(
                "busiest part of the memory system, of what it can sustain",
                "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
            ),
            _metric("warp instructions", "sm__inst_executed.sum"),
            _metric(
                "warp instructions a cycle with work, of an SM",
                "sm__inst_executed.avg.per_cycle_active",
            ),
        ),
    ),
    "occupancy": Group(
        "how full the multiprocessors are",
        (
            _metric(
                "achieved occupancy: warps of those that fit, in cycles with work",
                "sm__warps_active.avg.pct_of_peak_sustained_active",
            ),
            _metric(
                "warps in a cycle with work, of an SM", "sm__warps_active.avg.per_cycle_active"
            ),
        ),
    ),
    "tensor": Group(
        "work of the tensor cores",
        (
            _metric(
                "cycles of all in which the tensor pipe works",
                "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
            ),
            _metric("instructions of the tensor pipe", "sm__inst_executed_pipe_tensor.sum"),
        ),
    ),
}

#: Descriptions of the groups' metrics, by each of their names.
DESCRIPTIONS: Final[Mapping[str, str]] = {
    name: metric.description
    for group in GROUPS.values()
    for metric in group.metrics
    for name in metric.names
}
