"""Groups of metrics, how the names that a user gives are resolved, and the list of all names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.core.load import _C
from convtime.counting.chip import GpuChip
from convtime.counting.nvprof import NVPROF
from convtime.counting.results import CountersUnavailable
from convtime.device.resolve import resolve_gpu

#: Always counted: metrics that do not add up are averaged over launches, weighted by duration.
DURATION: Final = "gpu__time_duration.sum"


@dataclasses.dataclass(frozen=True)
class Group:
    """Metrics that answer one question about a kernel.

    Attributes:
        description: subject of the question.
        metrics: by the property of a kernel that they measure, the names of metrics that answer it:
            each on different GPUs, the most common first.
    """

    description: str
    metrics: Mapping[str, tuple[str, ...]]


GROUPS: Final[Mapping[str, Group]] = {
    "time": Group(
        "duration and clock cycles",
        {
            "duration": (DURATION,),
            "cycles that the longest-running SM had": ("sm__cycles_elapsed.max",),
            "cycles with work, mean over the SMs": ("sm__cycles_active.avg",),
        },
    ),
    "dram": Group(
        "traffic with the GPU's memory",
        {
            "bytes read": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
            "bytes written": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
            "sectors read": ("dram__sectors_read.sum", "dram__sectors_op_read.sum"),
            "sectors written": ("dram__sectors_write.sum", "dram__sectors_op_write.sum"),
            "bytes a second": ("dram__bytes.sum.per_second",),
            "share of the rate that the memory can sustain": (
                "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            ),
        },
    ),
    "l2": Group(
        "traffic with the L2 cache",
        {
            "sectors read": ("lts__t_sectors_op_read.sum",),
            "sectors written": ("lts__t_sectors_op_write.sum",),
            "all sectors": ("lts__t_sectors.sum",),
            "share of the sectors that were there": ("lts__t_sector_hit_rate.pct",),
            "share of the rate that the cache can sustain": (
                "lts__throughput.avg.pct_of_peak_sustained_elapsed",
            ),
        },
    ),
    "sm": Group(
        "throughput of the multiprocessors and the memory system, relative to their peak",
        {
            "busiest part of the SMs, of what it can sustain": (
                "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            ),
            "busiest part of the memory system, of what it can sustain": (
                "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
            ),
            "warp instructions": ("sm__inst_executed.sum",),
            "warp instructions a cycle with work, of an SM": (
                "sm__inst_executed.avg.per_cycle_active",
            ),
        },
    ),
    "occupancy": Group(
        "how full the multiprocessors are",
        {
            "achieved occupancy: warps of those that fit, in cycles with work": (
                "sm__warps_active.avg.pct_of_peak_sustained_active",
            ),
            "warps in a cycle with work, of an SM": ("sm__warps_active.avg.per_cycle_active",),
        },
    ),
    "tensor": Group(
        "work of the tensor cores",
        {
            "cycles of all in which the tensor pipe works": (
                "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
            ),
            "instructions of the tensor pipe": ("sm__inst_executed_pipe_tensor.sum",),
        },
    ),
}

#: Descriptions of the groups' metrics, by each of their names.
DESCRIPTIONS: Final[Mapping[str, str]] = {
    name: description
    for group in GROUPS.values()
    for description, names in group.metrics.items()
    for name in names
}

ALL: Final = "all"
_NEAREST = 5

# These count links of the whole device, which CUPTI does not attribute to one kernel.
_DEVICE_UNITS = frozenset({"c2clink", "ctc", "nvlrx", "nvltx", "pcie"})


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The metrics to count.

    Attributes:
        metrics: NVIDIA's names, without duplicates; the duration first.
        translated: for each requested nvprof name, the metrics to add and their factors.
        left_out: metrics of groups that the GPU does not support, and why.
    """

    metrics: tuple[str, ...]
    translated: dict[str, dict[str, float]]
    left_out: dict[str, str]


def split_names(asked: object) -> tuple[str, ...]:
    """Split the requested names: one string, which may contain commas, or several strings.

    Raises:
        TypeError: for anything other than strings.
        InputError: if there are no names, or one cannot be the name of a metric.
    """
    given = [asked] if isinstance(asked, str) else asked
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise TypeError(f"metrics must be names, got {asked!r}")
    names: dict[str, None] = {}
    for text in given:
        if not isinstance(text, str):
            raise TypeError(f"metrics must be names, got {text!r}")
        names.update(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    require(names, f"metrics must name at least one metric or group, got {asked!r}")
    known = (*GROUPS, ALL, *NVPROF)
    for name in names:
        if name not in known and "__" not in name:
            raise InputError(_unknown(name, known))
    return tuple(names)


def resolve(asked: Iterable[str], chip: GpuChip) -> Wanted:
    """Return the metrics that names refer to on a GPU.

    Raises:
        InputError: for a metric that the GPU does not support; suggests similar names.
    """
    metrics: dict[str, None] = {DURATION: None}
    translated: dict[str, dict[str, float]] = {}
    left_out: dict[str, str] = {}
    for name in asked:
        if name == ALL:
            metrics.update(dict.fromkeys(countable(chip.metrics())))
        elif name in GROUPS:
            for names in GROUPS[name].metrics.values():
                described = zip(names, chip.describe(names), strict=True)
                metric = next((each for each, known in described if known), None)
                if metric is None:
                    left_out[names[0]] = f"{chip.name} does not count it"
                else:
                    metrics[metric] = None
        elif name in NVPROF:
            translated[name] = _translate(name, chip)
            metrics.update(dict.fromkeys(translated[name]))
        else:
            metrics[_of_chip(name, chip)] = None
    return Wanted(tuple(metrics), translated, left_out)


def countable(metrics: Iterable[str]) -> list[str]:
    """Return the metrics that the hardware counts for one kernel.

    Metrics of ``sass`` are counted by modifying the kernel's code. Metrics with a dot in the first
    part of their names are other tools' copies of existing metrics.
    """
    return [
        metric
        for metric in metrics
        if "_sass_" not in metric
        and _unit(metric) not in _DEVICE_UNITS
        and "." not in _unit(metric)
    ]


def describe(metrics: Sequence[str], chip: GpuChip) -> dict[str, tuple[str, str, float]]:
    """Return each metric's description, unit, and the factor from CUPTI's unit to that unit."""
    described = {}
    for metric, known in zip(metrics, chip.describe(metrics), strict=True):
        description, unit, _ = known or ("", "", "")
        described[metric] = (DESCRIPTIONS.get(metric, description), *_si(unit))
    return described


def _si(unit: str) -> tuple[str, float]:
    """Return the unit shown for a unit of CUPTI, and the factor between the two."""
    if unit == "nanosecond":
        return "s", 1e-9
    if unit == "percent":
        return "%", 1.0
    above, *below = unit.split("/")
    parts = [part.removeprefix("l2_").removeprefix("l1tex_") for part in (above, *below)]
    plain = ["cycle" if part.endswith("_cycle") else part for part in parts]
    return "/".join("s" if part == "second" else part for part in plain), 1.0


def _unit(metric: str) -> str:
    return metric.partition("__")[0]


def _translate(name: str, chip: GpuChip) -> dict[str, float]:
    terms = NVPROF[name]
    for metric, known in zip(terms, chip.describe([*terms]), strict=True):
        require(
            known is not None,
            f"nvprof's {name!r} is now {metric}, which {chip.name} does not count; leave it out",
        )
    return dict(terms)


def _of_chip(name: str, chip: GpuChip) -> str:
    require(
        _unit(name) not in _DEVICE_UNITS,
        f"{name!r} counts a link of the whole device, which has no value for a single kernel; "
        "leave it out",
    )
    (known,) = chip.describe([name])
    every = chip.metrics()
    if known is None:
        raise InputError(_unknown(name, (*every, *GROUPS, *NVPROF), of=f" on {chip.name}"))
    # CUPTI describes a metric without a suffix, but does not count it.
    usual = next((metric for metric in every if metric.startswith(f"{name}.")), name)
    return name if "." in name else usual


def _unknown(name: str, known: Iterable[str], *, of: str = "") -> str:
    nearest = difflib.get_close_matches(name, [*known], n=_NEAREST, cutoff=0.5)
    offered = f"did you mean {', '.join(nearest)}?" if nearest else "see convtime.counter_names()"
    return f"there is no metric or group {name!r}{of}; {offered}"


@dataclasses.dataclass(frozen=True)
class CounterName:
    """A metric that :func:`convtime.counters` can read.

    Attributes:
        name: name of the metric.
        group: group that contains it; empty for none.
        unit: unit of its values.
        description: from NVIDIA, or from convtime for metrics of a group.
    """

    name: str
    group: str
    unit: str
    description: str

    def __str__(self) -> str:
        unit = f" [{self.unit}]" if self.unit else ""
        return f"{self.name}{unit}: {self.description}"


def counter_names(
    containing: str = "", device: torch.device | str | int | None = None
) -> tuple[CounterName, ...]:
    """List the metrics that a GPU counts for each kernel: those of groups first, then all others.

    Each has its most common suffix. NVIDIA's documentation lists other suffixes, such as ``.avg``,
    ``.max`` or ``.sum.per_second`` for a metric that has ``.sum`` here.

    Args:
        containing: text that the name or the description must contain, ignoring case.
        device: the GPU. Default: the current one.

    Raises:
        CountersUnavailable: if there is no GPU, or none that reports its counters.
        ValueError: for a device that is not a GPU of this process.
    """
    if not _C.cuda_available():
        raise CountersUnavailable(
            "hardware counters need a GPU, and PyTorch finds no GPU that it can use"
        )
    return names_of(GpuChip(resolve_gpu(device)), containing)


def names_of(chip: GpuChip, containing: str = "") -> tuple[CounterName, ...]:
    """List the metrics of a chip, as :func:`counter_names`."""
    group_of = {
        name: group
        for group, members in GROUPS.items()
        for names in members.metrics.values()
        for name in names
    }
    every = dict.fromkeys([*group_of, *countable(chip.metrics())])
    known = [
        name
        for name, known in zip(every, chip.describe([*every]), strict=True)
        if known is not None
    ]
    listed = [
        CounterName(name, group_of.get(name, ""), unit, description)
        for name, (description, unit, _) in describe(known, chip).items()
    ]
    part = containing.casefold()
    return tuple(
        each
        for each in listed
        if part in each.name.casefold() or part in each.description.casefold()
    )
