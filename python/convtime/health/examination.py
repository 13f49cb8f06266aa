"""The result of examining a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from convtime.core import codec
from convtime.core.shown import Shown
from convtime.device.state import CpuState, GpuState, KernelCache
from convtime.health import show
from convtime.health.findings import Finding, find
from convtime.timing.measurement import Ceilings


@dataclasses.dataclass(frozen=True)
class KnownDuration:
    """Two interleaved spins of known durations, timed by one method; their common cost cancels.

    Attributes:
        method: timing method.
        expected: difference between the two known durations, in seconds.
        measured: median difference over the rounds; None if the method is unavailable.
        spread: interquartile range of the longer spin divided by its median.
        interval: 95 % interval of ``measured``; None if unavailable.
        reason: why the method is unavailable; empty otherwise.
    """

    method: str
    expected: float
    measured: float | None
    spread: float | None
    interval: tuple[float, float] | None = None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Error of the measured difference, in seconds."""
        return None if self.measured is None else self.measured - self.expected

    @property
    def least_error(self) -> float | None:
        """Smallest absolute error within the interval, in seconds."""
        if self.error is None or self.interval is None:
            return None if self.error is None else abs(self.error)
        low, high = (end - self.expected for end in self.interval)
        return max(low, -high, 0.0)


@dataclasses.dataclass(frozen=True)
class OperationTiming:
    """One operation, timed by one method in one regime.

    Attributes:
        name: the operation.
        method: timing method.
        regime: requested regime; ``as-is`` requests none.
        median: median time in seconds; None if the method or the regime was unavailable.
        spread: interquartile range divided by the median.
        interval: 95 % interval of the median, in seconds.
        reason: why the method or the regime was unavailable; empty otherwise.
    """

    name: str
    method: str
    regime: str
    median: float | None
    spread: float | None
    interval: tuple[float, float] | None
    reason: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class Examination(codec.Stored, Shown, show=show):
    """Result of examining a machine; see :func:`convtime.doctor`.

    Attributes:
        cpu: state of the processors.
        gpu: state of the GPU; None on a CPU, or if NVML is unavailable.
        gpu_reason: why the GPU's state is missing; empty on a CPU or if it is present.
        known_durations: one entry per method.
        operations: each operation by each method, then in each regime.
        ceilings: rates that the device reaches.
        kernel_cache: state of the kernels' compiler and cache; None on a CPU.
        seconds: duration of the whole examination.
        provenance: hardware, software and source state (see convtime.core.provenance).
    """

    cpu: CpuState
    gpu: GpuState | None
    gpu_reason: str
    known_durations: tuple[KnownDuration, ...]
    operations: tuple[OperationTiming, ...]
    ceilings: Ceilings
    seconds: float
    provenance: Mapping[str, Any]
    kernel_cache: KernelCache | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The result of each check."""
        return tuple(find(self))

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(finding.status != "failed" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with findings, and whether all checks passed."""
        findings = [codec.encode(finding) for finding in self.findings]
        return super().to_dict() | {"passed": self.passed, "findings": findings}
