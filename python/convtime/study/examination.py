"""What was seen on a machine whose timings may be trusted, or may not: data alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal

from convtime.device.state import CpuState, GpuState
from convtime.results.ceilings import Ceilings

AS_IS: Final = "as-is"

Status = Literal["ok", "advice", "failed"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check says.

    Attributes:
        check: what was looked at.
        status: ``ok``; ``advice`` (times are true, but could be steadier, or mean something else
            than you think); or ``failed`` (do not trust times of this machine as it is).
        message: what was seen.
        advice: what to do about it; empty where there is nothing to do.
    """

    check: str
    status: Status
    message: str
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class KnownDuration:
    """Two spins of known durations, timed interleaved by one method, whose common cost cancels.

    Attributes:
        method: the method.
        expected: the difference of their durations, in seconds.
        measured: the median difference over the rounds; None where the method could not be used.
        spread: the longer one's quartiles' distance over its median.
        interval: the 95 % interval of ``measured``; None where there is none.
        reason: why the method could not be used; empty where it could.
    """

    method: str
    expected: float
    measured: float | None
    spread: float | None
    interval: tuple[float, float] | None = None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """How far off the difference is, in seconds."""
        return None if self.measured is None else self.measured - self.expected

    @property
    def least_error(self) -> float | None:
        """The smallest absolute error within the interval, in seconds."""
        if self.error is None or self.interval is None:
            return None if self.error is None else abs(self.error)
        low, high = (end - self.expected for end in self.interval)
        return max(low, -high, 0.0)


@dataclasses.dataclass(frozen=True)
class OperationTiming:
    """One operation, timed by one method, in one regime.

    Attributes:
        name: the operation.
        method: the method.
        regime: the regime asked for; ``as-is`` is none in particular.
        median: in seconds; None where the method or the regime was not to be had.
        spread: the quartiles' distance over the median.
        interval: the median's 95 % interval, in seconds.
        reason: why it was not to be had; empty where it was.
    """

    name: str
    method: str
    regime: str
    median: float | None
    spread: float | None
    interval: tuple[float, float] | None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Examination:
    """All that was seen on a machine.

    Attributes:
        cpu: its processors' state.
        gpu: its GPU's state; None on a CPU, and where NVML cannot be used.
        gpu_reason: why there is none; empty on a CPU, and where there is one.
        known_durations: one of each method.
        operations: each operation by each method, then in each regime.
        ceilings: the rates that the device reaches.
        seconds: what all of it took.
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
