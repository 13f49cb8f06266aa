"""The columns of tables; and the rows of a sweep, one for each point and quantity."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from convtime.counting.kernel_counters import Counters
    from convtime.sweeps.plan import SweepPoint
    from convtime.timing.measurement import Measurement


#: The quantity that every point has, in addition to the counted metrics.
TIME: Final = "time"

_CONDITIONS = ("method", "queue", "cache", "placement", "pages", "regime", "device")

#: The columns of a sweep other than the axes; an axis must not have one of these names.
SWEEP_COLUMNS = (
    "application",
    "quantity",
    "kernel",
    "unit",
    *("count", "mean", "min", "max", "median", "median_low", "median_high"),
    *(f"{condition}_used" for condition in _CONDITIONS),
    "gpu",
    "worker",
    "control_ratio",
    "error",
)

#: The columns of a comparison over axes other than the axes.
COMPARISON_COLUMNS = (
    "candidate",
    *("count", "median", "median_low", "median_high"),
    *("ratio", "ratio_low", "ratio_high", "verdict", "outcome"),
    *("flops_per_second", "flops_share", "bytes_per_second", "bytes_share"),
    *("gpu", "worker", "control_ratio", "error"),
)


def rows(
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
    conditions = {f"{condition}_used": getattr(measured, condition) for condition in _CONDITIONS}
    conditions["gpu"] = measured.provenance.get("gpu")
    conditions["control_ratio"] = ratios.get(point.worker)
    for quantity in (TIME, *metrics(point)):
        quantities = {"quantity": quantity, "unit": unit(point, quantity)}
        for kernel in ("", *(kernel_names(point) if kernels else ())):
            values = summary(point, quantity, kernel)
            if values or not kernel:
                yield {**same, **quantities, "kernel": kernel, **values, **conditions}


def metrics(point: SweepPoint) -> list[str]:
    """Return the counted metrics; requested nvprof metrics replace the metrics they consist of."""
    counted = point.counters
    if counted is None:
        return []
    terms = set().union(*counted.translated.values())
    return [*counted.translated, *(metric for metric in counted.samples if metric not in terms)]


def kernel_names(point: SweepPoint) -> list[str]:
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
