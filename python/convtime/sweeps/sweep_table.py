"""The result of a sweep: applications measured at combinations of axis values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from convtime.sweeps.plan import SweepPlan, SweepPoint
from convtime.sweeps.rows import SWEEP_COLUMNS, kernel_names, metrics, rows
from convtime.sweeps.table import PointTable
from convtime.view.figure import Figure


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep(PointTable[SweepPoint], show="convtime.sweeps.show_sweep"):
    """Applications measured at each combination of axis values; see :func:`convtime.sweep`.

    Attributes:
        plan: the plan of the sweep.
        points: visited points, in the order of applications and axes, including failed ones.
        controls: visits of the control, in order of time.

    Raises:
        ValueError: a point is not in the plan, or occurs more than once.
    """

    plan: SweepPlan
    points: tuple[SweepPoint, ...]
    controls: tuple[SweepPoint, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were counted at any point; nvprof metrics have their requested names."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(metrics, self.points))))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The short names of all kernels that were timed or counted at any point."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(kernel_names, self.points))))

    def to_rows(self, *, kernels: bool = False) -> list[dict[str, Any]]:
        """Return the table, with a row for each point and quantity (the time and each metric).

        The columns are application, the axes, quantity, kernel, unit, count (of the samples), mean,
        min, max, median and its 95 % interval, the actual conditions, gpu, worker, control_ratio
        (with several workers: the control's time on this one over that on a typical one) and error.
        A point that failed has one row, whose error says why.

        Args:
            kernels: whether to add rows for each kernel of a call, by its short name: the times of
                all of its launches, and its metrics per launch.
        """
        ratios = self.worker_ratios()
        return [row for point in self.points for row in rows(point, ratios, kernels=kernels)]

    @property
    def _columns(self) -> list[str]:
        first, *rest = SWEEP_COLUMNS
        return [first, *self.plan.axes, *rest]

    def plot(
        self, x: str | None = None, quantities: Sequence[str] | None = None, kernel: str = ""
    ) -> Figure:
        """Plot each quantity over an axis: medians, and a band for their uncertainty or range.

        The band of a call's time is the 95 % interval of the median. Those of counted metrics and
        of one kernel's launches are from the minimum to the maximum. All applications share a
        panel, in different colors. There is a row of panels for each quantity, and a column for
        each combination of the other axes.

        Args:
            x: the axis. Default: ``iterations``, or else the first numeric axis, or the first axis.
            quantities: ``time`` and counted metrics. Default: all of these.
            kernel: short name of the kernel whose launches are plotted (:attr:`kernels`). Default:
                whole calls.

        Returns:
            A figure to save or show, e.g. ``swept.plot().save("sweep.png")``.

        Raises:
            ValueError: the axis, a quantity or the kernel is unknown, nothing was measured.
        """
        figure: Figure = self._drawing().plot(self, x, quantities, kernel)
        return figure
