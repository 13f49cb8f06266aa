"""Hardware counters of one operation's kernels."""

from __future__ import annotations

import dataclasses
import math
import operator
import reprlib
from typing import Any, ClassVar

from convtime.core import codec
from convtime.core.errors import shown
from convtime.results.costs import Energy, PeakMemory
from convtime.results.kernel_names import shorten


class CountersUnavailable(RuntimeError):  # noqa: N818 (no fault in the call)
    """Hardware counters may not or cannot be read here; one sentence says what would change it."""


@dataclasses.dataclass(frozen=True)
class KernelCounters:
    """What was counted of one kernel.

    Attributes:
        name: the kernel's own.
        launches: how many times a call launches it.
        values: by metric, of one launch: the mean over the launches of a call, and of that the
            median over the repeats; None where the hardware has no value, such as the hit rate of
            a cache that was not asked.
        grid: blocks of the launch, in x, y and z; all 0 where that is not known.
        block: threads of a block, likewise.
    """

    name: str
    launches: int
    values: dict[str, float | None]
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)

    @property
    def short_name(self) -> str:
        """The name without what only a compiler needs."""
        return shorten(self.name)


@dataclasses.dataclass(frozen=True, repr=False)
class Counters(codec.Stored):
    """Hardware counters of one operation, and how they were read; see :func:`convtime.counters`.

    ``counters["dram__bytes_write.sum"]`` is the total of a metric, and so is
    ``counters["dram_write_bytes"]`` for an old name that was asked for.

    Attributes:
        name: what was counted.
        kernels: in the order in which a call first launches each.
        totals: by metric, of one call: the sum over its launches of what adds up (bytes, sectors,
            cycles, seconds), and of what does not (percentages, rates) the mean over them, weighted
            by their durations; of that the median over the repeats.
        samples: by metric, what ``totals`` is the median of, in the order of the repeats.
        units: by metric: ``byte``, ``sector``, ``%``, ``s`` and the like.
        descriptions: by metric, in words.
        translated: by the old names of nvprof's that were asked for, metrics and what each counts
            for in their sum.
        left_out: metrics of the groups asked for that this GPU does not have, and why.
        method: how the counters were read; ``range profiler`` is CUPTI's.
        replay: what was repeated, since the hardware counts a few events at a time: ``kernel``
            (each kernel, with the memory that it wrote restored) or ``call`` (the whole call, for
            as many metrics as one pass counts).
        passes: how many passes all metrics took.
        cache: what each call finds in the L2 cache: ``cold``, ``cold-clean`` or ``warm``.
        cache_reason: why, where that is not what was asked for.
        kernels_reason: why kernels have no names; empty where they have.
        device: the GPU, e.g. ``cuda:0``.
        exclusive: whether no other timing of this user ran on the GPU meanwhile.
        exclusive_reason: why not, where that was asked for.
        energy: of a call; None unless ``convtime counters --energy`` read it.
        peak_memory: of a call; None unless ``convtime counters --memory`` read it.
        provenance: hardware, software and source state.

    Raises:
        ValueError: where something is not there for each metric.
    """

    SCHEMA: ClassVar[str] = "1.1"

    name: str
    kernels: tuple[KernelCounters, ...]
    totals: dict[str, float | None]
    samples: dict[str, tuple[float | None, ...]]
    units: dict[str, str]
    descriptions: dict[str, str]
    method: str
    replay: str
    passes: int
    cache: str
    device: str
    translated: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    cache_reason: str = ""
    kernels_reason: str = ""
    exclusive: bool = False
    exclusive_reason: str = ""
    energy: Energy | None = None
    peak_memory: PeakMemory | None = None
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        used = {*self.totals}.union(
            *(kernel.values for kernel in self.kernels), *self.translated.values()
        )
        for field in ("totals", "samples", "units", "descriptions"):
            missing = sorted(used - getattr(self, field).keys())
            if missing:
                raise ValueError(
                    f"counters must have {field} of each of their metrics, and have none of "
                    f"{shown(missing[0])}"
                )
        for name, terms in self.translated.items():
            counts = [len(self.samples[metric]) for metric in terms]
            if len(set(counts)) != 1:
                raise ValueError(
                    "counters must have as many samples of each metric that "
                    f"{shown(name)} stands for, got {reprlib.repr(counts)}"
                )

    def __getitem__(self, name: str) -> float | None:
        terms = self.translated.get(name, {name: 1.0})
        values = [self.totals[metric] for metric in terms]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return math.fsum(map(operator.mul, terms.values(), known))

    def __str__(self) -> str:
        """What was counted of a call, a line for each metric."""
        from convtime.show.counters import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.counters import line

        return f"<convtime.Counters {line(self)}>"

    def details(self) -> str:
        """What was counted of each kernel, too, and how."""
        from convtime.show.counters import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.counters import html_sheet

        return html_sheet(self)
