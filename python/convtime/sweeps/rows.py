"""The table of a sweep: a row for each point and quantity, with statistics."""

from __future__ import annotations

import math
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
_STATISTICS = ("count", "mean", "min", "max", "median", "median_low", "median_high")

#: The columns other than the axes; an axis must not have one of these names.
COLUMNS = (
    "application",
    "quantity",
    "kernel",
    "unit",
    *_STATISTICS,
    *(f"{condition}_used" for condition in _CONDITIONS),
    "gpu",
    "worker",
    "control_ratio",
    "error",
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
    used = {f"{condition}_used": getattr(measured, condition) for condition in _CONDITIONS}
    used["gpu"] = measured.provenance.get("gpu")
    used["control_ratio"] = ratios.get(point.worker)
    for quantity in (TIME, *metrics(point)):
        for kernel in ("", *(kernel_names(point) if kernels else ())):
            found = summary(point, quantity, kernel)
            if found or not kernel:
                told = {"quantity": quantity, "kernel": kernel, "unit": unit(point, quantity)}
                yield {**same, **told, **found, **used}


def metrics(point: SweepPoint) -> list[str]:
    """Return the counted metrics."""
    return [] if point.counters is None else [*point.counters.samples]


def kernel_names(point: SweepPoint) -> list[str]:
    """Return the short names of the work that a call launches."""
    activities = () if point.measurement is None else point.measurement.activities
    counted = () if point.counters is None else point.counters.kernels
    names = [*(each.short_name for each in activities), *(each.short_name for each in counted)]
    return list(dict.fromkeys(names))


def unit(point: SweepPoint, quantity: str) -> str:
    """Return the unit of a quantity."""
    if quantity == TIME:
        return "s"
    return "" if point.counters is None else point.counters.units.get(quantity, "")


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
            [
                seconds
                for activity in measured.activities
                if activity.short_name == kernel
                for seconds in activity.seconds
                if seconds is not None
            ]
        )
    interval = measured.median_interval
    known = all(map(math.isfinite, interval))
    values = (
        len(measured.seconds), measured.mean, measured.min, measured.max, measured.median,
        *(interval if known else (None, None)),
    )  # fmt: skip
    return dict(zip(_STATISTICS, values, strict=True))


def _of_counters(counted: Counters, metric: str, kernel: str) -> dict[str, Any]:
    values: Iterable[float | None] = counted.samples.get(metric, ())
    if kernel:
        values = (each.values.get(metric) for each in counted.kernels if each.short_name == kernel)
    return _statistics([value for value in values if value is not None])


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    """Return statistics without an interval: the values are too few, or too little understood."""
    if not values:
        return {}
    mean, median = statistics.fmean(values), statistics.median(values)
    found = (len(values), mean, min(values), max(values), median)
    return dict(zip(_STATISTICS, found, strict=False))
