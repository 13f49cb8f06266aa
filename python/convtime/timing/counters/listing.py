"""The names that hardware counters can be asked for by."""

from __future__ import annotations

import dataclasses

import torch

from convtime.core.load import _C
from convtime.device.resolve import resolve_device
from convtime.results.counters import CountersUnavailable
from convtime.timing.counters.chip import GpuChip
from convtime.timing.counters.groups import GROUPS
from convtime.timing.counters.names import Chip, countable, describe


@dataclasses.dataclass(frozen=True)
class CounterName:
    """A metric that :func:`convtime.counters` can be asked for.

    Attributes:
        name: its own.
        group: which it is part of; empty for none.
        unit: of its values.
        description: in NVIDIA's words, or convtime's for those of a group.
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
    """The metrics that a GPU counts for each kernel: those of groups, and then all others.

    Each has the suffix of the value that is mostly meant; others are in NVIDIA's documents, such
    as ``.avg``, ``.max`` or ``.sum.per_second`` of what has ``.sum`` here.

    Args:
        containing: a part of the name or of the description that they must have, in any case.
        device: the GPU; the current one unless given.

    Raises:
        CountersUnavailable: where there is no GPU, or none that tells.
        ValueError: for a device that is no GPU of this process.
    """
    if not _C.cuda_available():
        raise CountersUnavailable(
            "hardware counters are a GPU's, and PyTorch finds no GPU that it can use"
        )
    gpu = resolve_device(device)
    if gpu.type != "cuda":
        raise ValueError(f"device must be a CUDA device, got {str(device)!r}")
    return names_of(GpuChip(gpu), containing)


def names_of(chip: Chip, containing: str = "") -> tuple[CounterName, ...]:
    """The metrics of a chip, as :func:`counter_names`."""
    group_of = {
        name: group
        for group, members in GROUPS.items()
        for metric in members.metrics
        for name in metric.names
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
