"""List the names of the hardware counters that can be requested."""

from __future__ import annotations

import dataclasses

import torch

from convtime.core.load import _C
from convtime.counting.chip import GpuChip
from convtime.counting.kernel_counters import CountersUnavailable
from convtime.counting.metrics import GROUPS, countable, describe
from convtime.device.resolve import resolve_gpu


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
        name for name, told in zip(every, chip.describe([*every]), strict=True) if told is not None
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
