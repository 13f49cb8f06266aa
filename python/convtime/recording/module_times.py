"""Times of a model's modules within a training step, and in isolation."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Any, Literal

from convtime.core import codec
from convtime.core.load import _C
from convtime.counting.results import Counters
from convtime.device.clock_trace import ClockReading
from convtime.timing.activity import DeviceActivity, same_launches
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Ratio
from convtime.view.figure import Figure
from convtime.view.shown import Shown

Direction = Literal["forward", "backward"]


@dataclasses.dataclass(frozen=True)
class PassTimes:
    """A module's forward or backward passes within a step, and in isolation.

    Attributes:
        module: name in the model; empty for the model itself.
        kind: class of the module.
        direction: ``forward`` or ``backward``.
        calls: number of calls of the module per step.
        seconds: for each step, the total time of the calls: the summed durations of the kernels,
            copies and memsets that they issued, or the host's time.
        activities: this device work, with the time of each activity in every step; empty without
            a GPU.
        isolated: the same calls in isolation, timed together as one.
        isolated_reason: why they were not timed in isolation; empty if they were.
        counters: hardware counters of the isolated calls; None if they were not read.
        counters_reason: why reading the counters failed; empty otherwise.
    """

    module: str
    kind: str
    direction: Direction
    calls: int
    seconds: tuple[float, ...]
    activities: tuple[DeviceActivity, ...] = ()
    isolated: Measurement | None = None
    isolated_reason: str = ""
    counters: Counters | None = None
    counters_reason: str = ""

    @property
    def median(self) -> float:
        """The median of its times in the steps, in seconds."""
        return statistics.median(self.seconds)

    @property
    def median_interval(self) -> tuple[float, float]:
        """Interval that contains the true median with 95 % confidence, as for a Measurement."""
        low, high, _, _ = _C.median_interval(self.seconds, (), (), 0.0, 0.0)
        return low, high

    @property
    def ratio(self) -> Ratio | None:
        """The time within the step over the time in isolation; None without an isolated time.

        The two were not measured alternately: the interval spans the extremes of the two medians'
        intervals.
        """
        alone = self.isolated
        if alone is None or alone.median <= 0 or alone.no_gpu_work:
            return None
        low, high = self.median_interval
        alone_low, alone_high = alone.median_interval
        return Ratio(
            self.median / alone.median,
            max(0.0, low / alone_high),
            high / alone_low if alone_low > 0 else math.inf,
        )

    @property
    def same_kernels(self) -> bool | None:
        """Whether the same work is launched in isolation as in the step; None if unknown."""
        if self.isolated is None or self.isolated.method != "kernel" or not self.activities:
            return None
        return same_launches(self.activities, self.isolated.activities)


@dataclasses.dataclass(frozen=True, repr=False)
class ModuleTimes(codec.Stored, Shown, show="convtime.recording.show_modules"):
    """The modules of a model within a training step; see :func:`convtime.time_modules`.

    Attributes:
        model: class of the model.
        method: ``kernel`` (a GPU's kernels, copies and memsets) or ``cpu`` (the host's times).
        method_reason: why the method is ``cpu``; otherwise empty.
        device: device of the model.
        regime: state of the GPU for the isolated timings: ``step`` (the step ran before each call),
            or one of ``time_op``'s.
        passes: passes of the modules, in the order in which the step calls them.
        step_seconds: time of each recorded step, of the same kind as the passes' times.
        plain_seconds: time of the steps in between, which were not recorded.
        rest_seconds: for each recorded step, the time outside all passes: loss, optimizer, work
            that does not belong to a module, gradient accumulation.
        margin: relative difference that counts as equal.
        not_called: names of modules that the step does not call, among the requested ones or those
            without submodules.
        conditions: the GPU's clocks, power and temperature while the steps were recorded.
        conditions_reason: why conditions are missing; empty if they are not.
        exclusive: whether other timings of this user on the GPU had to wait while the steps were
            recorded.
        exclusive_reason: why they did not wait; empty if they did.
        counters: hardware counters of the step; None if they were not read.
        counters_reason: why requested counters were not read; empty otherwise.
        provenance: hardware, software and source state.
    """

    model: str
    method: str
    method_reason: str
    device: str
    regime: str
    passes: tuple[PassTimes, ...]
    step_seconds: tuple[float, ...]
    plain_seconds: tuple[float, ...]
    rest_seconds: tuple[float, ...]
    margin: float
    not_called: tuple[str, ...] = ()
    conditions: tuple[ClockReading, ...] = ()
    conditions_reason: str = ""
    exclusive: bool = False
    exclusive_reason: str = ""
    counters: Counters | None = None
    counters_reason: str = ""
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def disturbance(self) -> float:
        """The median time of a recorded step over the median time of an unrecorded step."""
        plain = statistics.median(self.plain_seconds)
        return statistics.median(self.step_seconds) / plain if plain > 0 else math.nan

    def verdict(self, timed: PassTimes) -> str:
        """Return the verdict on the time in the step over the isolated time; empty for none."""
        return "" if timed.ratio is None else timed.ratio.verdict(self.margin)

    def plot(self) -> Figure:
        """Plot each module's time within the step and in isolation.

        Returns:
            A figure to save or show, e.g. ``times.plot().save("modules.png")``.
        """
        figure: Figure = self._drawing().plot(self)
        return figure
