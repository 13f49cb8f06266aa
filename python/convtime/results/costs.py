"""What a call costs beside time: energy and memory."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Energy:
    """Energy of a GPU for each of many calls, back to back.

    It is all that the GPU drew meanwhile, also what it draws when idle.

    Attributes:
        name: what was called.
        joules: of one call.
        resolution: how far that may be off, since the GPU's counter moves in steps, in joules.
        watts: what the GPU drew on average.
        seconds: how long it was watched.
        calls: how many calls that was.
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
class PeakMemory:
    """Memory of PyTorch's allocator that a call took, beyond what was taken before.

    Attributes:
        name: what was called.
        bytes: the most at any time of the call.
        result_bytes: what its result still takes.
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
