"""The result of a sweep: applications measured at combinations of axis values."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from convtime.counting.results import Counters
from convtime.sweeps.plan import SweepPlan, SweepPoint
from convtime.sweeps.table import PointTable
from convtime.timing.measurement import CONDITIONS, Measurement
from convtime.view.figure import Figure

#: The quantity that every point has, in addition to the counted metrics.
TIME: Final = "time"


#: The columns other than the axes; an axis must not have one of these names.
SWEEP_COLUMNS = (
    "application",
    "quantity",
    "kernel",
    "unit",
    *("count", "mean", "min", "max", "median", "median_low", "median_high"),
    *(f"{condition}_used" for condition in (*CONDITIONS, "device")),
    "gpu",
    "worker",
    "control_ratio",
    "error",
)


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
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(_metrics, self.points))))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The short names of all kernels that were timed or counted at any point."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(_kernel_names, self.points))))

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
        return [row for point in self.points for row in _rows(point, ratios, kernels=kernels)]

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


def _rows(
    point: SweepPoint, ratios: Mapping[str, float | None], *, kernels: bool
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a point: per quantity, one for the call and optionally one per kernel.

    A point that failed has one row, with its error.

    Args:
        point: the point.
        ratios: of several workers, the control's time on each over that on a typical one.
        kernels: whether to yield rows for kernels.
    """
    measured = point.measurement
    same: dict[str, Any] = {"application": point.application, **point.values}
    if point.worker:
        same["worker"] = point.worker
    if measured is None:
        yield {**same, "error": point.error}
        return
    conditions = {
        f"{condition}_used": getattr(measured, condition) for condition in (*CONDITIONS, "device")
    }
    conditions["gpu"] = measured.provenance.get("gpu")
    conditions["control_ratio"] = ratios.get(point.worker)
    for quantity in (TIME, *_metrics(point)):
        quantities = {"quantity": quantity, "unit": unit(point, quantity)}
        for kernel in ("", *(_kernel_names(point) if kernels else ())):
            values = summary(point, quantity, kernel)
            if values or not kernel:
                yield {**same, **quantities, "kernel": kernel, **values, **conditions}


def _metrics(point: SweepPoint) -> list[str]:
    """Return the counted metrics; requested nvprof metrics replace the metrics they consist of."""
    counted = point.counters
    if counted is None:
        return []
    terms = set().union(*counted.translated.values())
    return [*counted.translated, *(metric for metric in counted.samples if metric not in terms)]


def _kernel_names(point: SweepPoint) -> list[str]:
    """Return the short names of the work that a call launches."""
    activities = point.measurement.activities if point.measurement else ()
    kernels = point.counters.kernels if point.counters else ()
    names = [*(work.short_name for work in activities), *(kernel.short_name for kernel in kernels)]
    return list(dict.fromkeys(names))


def unit(point: SweepPoint, quantity: str) -> str:
    """Return the unit of a quantity; an nvprof metric has the unit of its first term."""
    if quantity == TIME:
        return "s"
    if point.counters is None:
        return ""
    first = next(iter(point.counters.translated.get(quantity, (quantity,))))
    return point.counters.units.get(first, "")


def summary(point: SweepPoint, quantity: str, kernel: str = "") -> dict[str, Any]:
    """Return the statistics of a quantity, by column; empty if nothing is known about it.

    Args:
        point: the point, measured or not.
        quantity: the time, or a metric.
        kernel: short name of the kernel. Default: the whole call. A kernel's times are those of all
            its launches; its metrics are one number for each of its grids.
    """
    if quantity == TIME:
        return {} if point.measurement is None else _of_times(point.measurement, kernel)
    return {} if point.counters is None else _of_counters(point.counters, quantity, kernel)


def _of_times(measured: Measurement, kernel: str) -> dict[str, Any]:
    if kernel:
        return _statistics(
            seconds
            for activity in measured.activities
            if activity.short_name == kernel
            for seconds in activity.seconds
        )
    low, high = measured.median_interval
    is_known = math.isfinite(low) and math.isfinite(high)
    return {
        "count": len(measured.seconds),
        "mean": measured.mean,
        "min": measured.min,
        "max": measured.max,
        "median": measured.median,
        "median_low": low if is_known else None,
        "median_high": high if is_known else None,
    }


def _of_counters(counted: Counters, metric: str, kernel: str) -> dict[str, Any]:
    """Return the statistics of a metric; its values are unknown where one of its terms is."""
    terms = counted.translated.get(metric, {metric: 1.0})
    counts: Iterable[Sequence[float | None]]
    if kernel:
        counts = (
            [grid.values.get(term) for term in terms]
            for grid in counted.kernels
            if grid.short_name == kernel
        )
    else:
        counts = zip(*(counted.samples.get(term, ()) for term in terms), strict=True)
    return _statistics(
        None if None in values else sum(map(operator.mul, terms.values(), values))
        for values in counts
    )


def _statistics(values: Iterable[float | None]) -> dict[str, Any]:
    """Return statistics without an interval: the values are too few, or too little understood."""
    known = [value for value in values if value is not None]
    if not known:
        return {}
    return {
        "count": len(known),
        "mean": statistics.fmean(known),
        "min": min(known),
        "max": max(known),
        "median": statistics.median(known),
    }
