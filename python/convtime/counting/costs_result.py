"""Other costs of a call: energy and memory."""

from __future__ import annotations

import dataclasses

from convtime.core import codec
from convtime.view.shown import Reported


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
