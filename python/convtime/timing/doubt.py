"""Reasons for uncertain verdicts: a code for programs, and a sentence for people."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from convtime.core.units import format_seconds
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Reason


@dataclasses.dataclass(frozen=True)
class Doubt:
    """One reason, with its sentence."""

    reason: Reason
    sentence: str


def of_idle(*pair: Measurement) -> Doubt | None:
    """Return the doubt about a candidate without GPU times; None if both candidates have them."""
    idle = [measured.name for measured in pair if measured.no_gpu_work]
    if not idle:
        return None
    return Doubt("no-gpu-work", f"{idle[0]!r} issues no work to the GPU: method='cpu' times both")


def of_control(name: str, verdict: str, ratio: str) -> Doubt:
    """Return the doubt about all verdicts after a duplicate of the baseline was found to differ."""
    return Doubt(
        "control-differs",
        f"{name!r} does the same as the baseline, and was found {verdict} ({ratio}): this run "
        "finds differences where there are none",
    )


def of_cost(would_be: str, uncertainty: float) -> Doubt:
    """Return the doubt about times whose method overhead is not known well enough."""
    return Doubt(
        "method-cost",
        f"it would be {would_be} if the method overhead were known more precisely than to "
        f"± {format_seconds(uncertainty)}; method='kernel' has no overhead",
    )


def of_fresh_process(verdict: str, by_fresh: str, ratio: str) -> Doubt:
    """Return the doubt about a verdict that differs in a fresh process."""
    return Doubt(
        "not-confirmed",
        f"it is {verdict} in this process, but {by_fresh} in a fresh one ({ratio}): the result "
        "depends on properties of the process, such as the state of its memory",
    )


def of_places(share: float) -> Doubt:
    """Return the doubt about a small difference between calls on a CPU."""
    return Doubt(
        "placement",
        f"tensor placement in a CPU's memory can change the ratio by {share:.0%}, and the interval "
        "does not exceed the margin by that much; a fresh process confirms it (confirm=True)",
    )


def of_interval(low: float, high: float, margin: float, *pair: Measurement) -> Doubt:
    """Return the doubt about an interval that is neither within the margin nor beyond it."""
    rounds = len(pair[0].seconds)
    ended = f"sampling ended by {pair[0].stop_reason} after {rounds} rounds"
    if not (math.isfinite(low) and math.isfinite(high)):
        return Doubt(
            "too-few-samples",
            f"{rounds} rounds are too few for an interval at that confidence",
        )
    if high - low <= 2 * margin:
        return Doubt(
            "at-the-margin",
            f"the margin's edge lies within {low:.4f} .. {high:.4f}: {ended}, and more samples "
            "narrow this",
        )
    wide = (
        f"the interval, ± {(high - low) / 2:.2%}, is wider than the margin: {ended}, and more "
        "samples narrow it"
    )
    disturbance = next(_disturbances(*pair), None)
    if disturbance is None:
        return Doubt("wide-interval", wide)
    return Doubt("disturbed", f"{disturbance}; {wide}")


def _disturbances(*pair: Measurement) -> Iterator[str]:
    for measured in pair:
        if measured.exclusive.requested and not measured.exclusive and measured.device != "cpu":
            yield measured.exclusive.reason
        if measured.disturbance:
            yield f"{measured.name!r} {measured.disturbance}"
        if measured.other_launches:
            yield (
                f"other threads launched {measured.other_launches} kernels, copies or memsets on "
                "the GPU at the same time"
            )
