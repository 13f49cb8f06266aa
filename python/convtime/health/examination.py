"""The result of examining a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from convtime.device.state import CpuState, GpuState, KernelCache
from convtime.health.findings import Finding, Judged, KnownDuration, OperationTiming, find
from convtime.timing.measurement import Ceilings
from convtime.view.shown import Shown


@dataclasses.dataclass(frozen=True, repr=False)
class Examination(Judged, Shown, show="convtime.health.show"):
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
        provenance: hardware, software and source state (see convtime.device.provenance).
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
        return tuple(
            find(
                self.known_durations,
                self.operations,
                self.cpu,
                self.gpu,
                self.gpu_reason,
                self.kernel_cache,
            )
        )
