"""What a model's modules take within a training step, and by themselves."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from convtime.core import codec
from convtime.core.load import _C
from convtime.results.activity import DeviceActivity, same_launches
from convtime.results.clock_reading import ClockReading
from convtime.results.comparison import Ratio
from convtime.results.counters import Counters
from convtime.results.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Direction = Literal["forward", "backward"]


@dataclasses.dataclass(frozen=True)
class PassTimes:
    """A module's forward or backward passes within a step, and by themselves.

    Attributes:
        module: its name in the model; empty for the model itself.
        kind: its class.
        direction: ``forward`` or ``backward``.
        calls: how many times a step calls the module.
        seconds: for each step, the time of all of these calls together: of the kernels, copies and
            memsets that they issued, added up, or the host's.
        activities: what these were, with the time of each in every step; empty without a GPU.
        isolated: the same calls by themselves, all of them as one.
        isolated_reason: why they were not timed so; empty where they were.
        counters: hardware counters of them by themselves; None where they were not read.
        counters_reason: why not, where that was tried.
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
        """The median of its times in the steps."""
        return statistics.median(self.seconds)

    @property
    def median_interval(self) -> tuple[float, float]:
        """Interval that holds the true median with 95 % confidence, as a Measurement's."""
        low, high, _, _ = _C.median_interval(self.seconds, (), (), 0.0, 0.0)
        return low, high

    @property
    def ratio(self) -> Ratio | None:
        """The time within the step over that by itself; None where there is none.

        The two were not taken by turns, so that its interval is that of the two medians' extremes.
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
        """Whether the same is launched by itself as in the step; None where that is not known."""
        if self.isolated is None or self.isolated.method != "kernel" or not self.activities:
            return None
        return same_launches(self.activities, self.isolated.activities)


@dataclasses.dataclass(frozen=True, repr=False)
class ModuleTimes(codec.Stored):
    """The modules of a model within a training step; see :func:`convtime.time_modules`.

    Attributes:
        model: the model's class.
        method: ``kernel`` (of a GPU's kernels, copies and memsets) or ``cpu`` (the host's times).
        method_reason: why it is ``cpu``; else empty.
        device: where the model lies.
        regime: in which state of the GPU modules were timed by themselves: ``step`` (the step ran
            before each call), or one of ``time_op``'s.
        passes: of the modules, in the order in which the step calls them.
        step_seconds: the time of each step whose modules were watched, as the passes' times are.
        plain_seconds: that of the steps between these, which nothing watched.
        rest_seconds: of each watched step, the time that belongs to no pass: loss, optimizer, what
            is no module's, gradients that are added up.
        margin: up to which share of a time another one counts as the same.
        not_called: names of modules that were to be timed, or that have none of their own, and
            that the step does not call.
        conditions: the GPU's clocks, power and temperature while the steps were recorded.
        conditions_reason: why there are none; empty where there are.
        exclusive: whether other timings of this user on the GPU had to wait while the steps were
            recorded.
        exclusive_reason: why they did not; empty where they did.
        counters: hardware counters of the step; None where they were not read.
        counters_reason: why not, where that was asked for.
        provenance: hardware, software and source state.
    """

    SCHEMA: ClassVar[str] = "1.1"

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
        """The median time of a watched step over that of one that nothing watched."""
        plain = statistics.median(self.plain_seconds)
        return statistics.median(self.step_seconds) / plain if plain > 0 else math.nan

    def verdict(self, timed: PassTimes) -> str:
        """``same``, ``slower`` or ``faster`` within the step, or ``uncertain``; empty for none."""
        return "" if timed.ratio is None else timed.ratio.verdict(self.margin)

    def __str__(self) -> str:
        """A table of the modules, and what is to be known beside it."""
        from convtime.show.modules import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.modules import line

        return f"<convtime.ModuleTimes {line(self)}>"

    def details(self) -> str:
        """As text, with the kernels of each module and what was counted of them."""
        from convtime.show.modules import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.modules import html_sheet

        return html_sheet(self)

    def plot(self) -> Figure:
        """Draws each module's time within the step and by itself.

        Returns:
            A figure to save or show, e.g. ``times.plot().savefig("modules.png")``.

        Raises:
            ValueError: where there is no matplotlib.
        """
        from convtime.show.plot import modules_figure

        return modules_figure(self)
