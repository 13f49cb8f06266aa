"""Costs of a call: hardware counters of its kernels, energy and memory."""

from __future__ import annotations

import dataclasses
import math
import operator
import reprlib
from typing import Any

from convtime.core import codec
from convtime.core.checks import require
from convtime.core.errors import shown
from convtime.timing.activity import shorten
from convtime.view.shown import Reported, Shown


class CountersUnavailable(RuntimeError):  # noqa: N818 (no fault in the call)
    """Hardware counters cannot be read here; the message says in one sentence how to fix it."""


@dataclasses.dataclass(frozen=True)
class Energy(codec.Stored, Reported):
    """A GPU's energy per call, measured over many back-to-back calls.

    It is the GPU's total energy during the measurement, including its idle power.

    Attributes:
        name: name of the function.
        joules: energy of one call.
        resolution: uncertainty of ``joules``, in joules, because the GPU's counter moves in steps.
        watts: the GPU's average power.
        seconds: duration of the measurement.
        calls: number of calls during the measurement.
        device: the GPU, e.g. ``cuda:0``.
    """

    name: str
    joules: float
    resolution: float
    watts: float
    seconds: float
    calls: int
    device: str

    def __str__(self) -> str:
        return (
            f"{self.name}: {_joules(self.joules)} ± {_joules(self.resolution)} a call, at "
            f"{self.watts:.0f} W over {self.calls:,} calls in {self.seconds:.2g} s on {self.device}"
        )


@dataclasses.dataclass(frozen=True)
class PeakMemory(codec.Stored, Reported):
    """Memory that a call took from PyTorch's allocator, in addition to the memory in use before.

    Attributes:
        name: name of the function.
        bytes: peak during the call.
        result_bytes: memory that the result still occupies.
        device: the GPU, e.g. ``cuda:0``.
    """

    name: str
    bytes: int
    result_bytes: int
    device: str

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.bytes / 1e6:,.3f} MB at most on {self.device}, "
            f"{self.result_bytes / 1e6:,.3f} MB of them its result"
        )


def _joules(joules: float) -> str:
    scale, unit = next(
        ((scale, unit) for scale, unit in ((1.0, "J"), (1e-3, "mJ")) if abs(joules) >= scale),
        (1e-6, "µJ"),
    )
    return f"{joules / scale:.3g} {unit}"


@dataclasses.dataclass(frozen=True)
class KernelCounters:
    """Counter values of one kernel.

    Attributes:
        name: full name of the kernel.
        launches: number of launches per call.
        values: value per launch, by metric: the mean over a call's launches, of which the median
            over the repeats is taken. None if the hardware has no value, e.g. the hit rate of a
            cache without accesses.
        grid: blocks of the launch, in x, y and z; all 0 if unknown.
        block: threads of a block, in x, y and z; all 0 if unknown.
    """

    name: str
    launches: int
    values: dict[str, float | None]
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)

    @property
    def short_name(self) -> str:
        """The kernel's name in short form."""
        return shorten(self.name)


@dataclasses.dataclass(frozen=True, repr=False)
class Counters(codec.Stored, Shown, show="convtime.counting.show"):
    """Hardware counters of one operation, and how they were read; see :func:`convtime.counters`.

    ``counters["dram__bytes_write.sum"]`` is the total of a metric. An old nvprof name that was
    requested works as well, e.g. ``counters["dram_write_bytes"]``.

    Attributes:
        name: name of the operation.
        kernels: the kernels, in order of their first launch in a call.
        totals: value per call, by metric. Additive metrics (bytes, sectors, cycles, seconds) are
            summed over the call's launches. Others (percentages, rates) are averaged over them,
            weighted by duration. The total is the median over the repeats.
        samples: values whose median is in ``totals``, by metric and in the order of the repeats.
        units: unit of each metric: ``byte``, ``sector``, ``%``, ``s`` and the like.
        descriptions: description of each metric.
        translated: for each requested nvprof name, its metrics and their weights in the sum.
        left_out: metrics of the requested groups that this GPU does not have, and why.
        method: how the counters were read; ``range profiler`` is CUPTI's.
        replay: the repeated unit, because the hardware counts only a few events at a time:
            ``kernel`` (each kernel, after restoring the memory that it wrote) or ``call`` (the
            whole call, for as many metrics as one pass can count).
        passes: number of passes for all metrics.
        cache: state of the L2 cache at the start of each call: ``cold``, ``cold-clean`` or
            ``warm``.
        cache_reason: why the cache state differs from the request; empty if it does not.
        kernels_reason: why kernels have no names; empty if they have.
        device: the GPU, e.g. ``cuda:0``.
        exclusive: whether no other timing of this user ran on the GPU at the same time.
        exclusive_reason: why ``exclusive`` is False although it was requested; otherwise empty.
        energy: energy of a call; None unless ``convtime counters --energy`` measured it.
        peak_memory: memory of a call; None unless ``convtime counters --memory`` measured it.
        provenance: hardware, software and source state.

    Raises:
        ValueError: a field lacks an entry for a metric.
    """

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
                    f"counters must have {field} for each of their metrics, got none for "
                    f"{shown(missing[0])}"
                )
        for name, terms in self.translated.items():
            counts = [len(self.samples[metric]) for metric in terms]
            require(
                len(set(counts)) == 1,
                "counters must have the same number of samples for each metric that "
                f"{shown(name)} stands for, got {reprlib.repr(counts)}",
            )

    def __getitem__(self, name: str) -> float | None:
        terms = self.translated.get(name, {name: 1.0})
        values = [self.totals[metric] for metric in terms]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return math.fsum(map(operator.mul, terms.values(), known))
