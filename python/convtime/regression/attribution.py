"""Attribute a change in a time to the code, the method, the hardware or noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from convtime.regression.differences import (
    CODE,
    HARDWARE,
    METHOD,
    SOFTWARE,
    Difference,
    SameGpu,
    differences,
    is_committed,
)
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Ratio

Cause = Literal["code", "method", "hardware or clocks", "noise"]

#: Evidence of a change that no record explains, between commits that are not recorded.
UNKNOWN_COMMITS = "no recorded property differs, and the commits are unknown"

# Instruction counts of unchanged code repeat within this share.
_SAME_INSTRUCTIONS = 0.01
# A change of the clock explains a change of the time if it accounts for this share of it.
_EXPLAINED = 0.5
_LONG_WAIT = 0.02  # share of a call for which its threads wait for a core, more than before


@dataclasses.dataclass(frozen=True)
class Attribution:
    """The most likely cause of a change.

    Attributes:
        cause: ``code``; ``method`` (the options or convtime changed); ``hardware or clocks``; or
            ``noise`` (nothing that was recorded can have caused it).
        evidence: the recorded facts that this is derived from.
    """

    cause: Cause
    evidence: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}"


def attribute(
    before: Measurement,
    after: Measurement,
    ratio: Ratio,
    same_gpu: SameGpu = "model",
    *,
    others_alike: str = "",
) -> Attribution:
    """Attribute a change between two measurements to its most likely cause.

    Facts about the call itself (its kernels, its instructions) count more than those about the
    machine, and those more than the commits: most commits leave most tests unchanged.

    Args:
        before: the earlier measurement.
        after: the later measurement.
        ratio: the later time over the earlier one.
        same_gpu: whether another GPU of the same model can be the cause (``uuid``).
        others_alike: a sentence if all tests changed alike; empty if not.
    """
    differing = {difference.what: difference for difference in differences(before, after)}
    method = _named(differing, METHOD)
    if method:
        return Attribution("method", method)
    was, now = ({activity.label for activity in run.activities} for run in (before, after))
    if was and now and was != now:
        gone, new = (", ".join(sorted(labels)) or "none" for labels in (was - now, now - was))
        return Attribution("code", f"it launches other kernels: {gone} → {new}")
    same_work = ""
    if before.instructions and after.instructions is not None:
        instructions = after.instructions / before.instructions
        if abs(instructions - 1) > _SAME_INSTRUCTIONS:
            return Attribution("code", f"it executes {instructions:.4g}× the instructions")
        same_work = "it executes as many instructions as before"
    if same_gpu == "model":
        differing.pop("gpu_uuid", None)
    hardware = _named(differing, HARDWARE) or _clock(before, after, ratio)
    if hardware:
        return Attribution("hardware or clocks", hardware)
    code = _named(differing, (*CODE, *SOFTWARE))
    disturbed = _disturbed(before, after, ratio, differing)
    if disturbed and (same_work or not code):
        return Attribution("noise", disturbed)
    if others_alike:
        return Attribution("hardware or clocks", "; ".join(filter(None, (others_alike, same_work))))
    if code:
        return Attribution("code", f"{code}; no other recorded property explains it")
    if is_committed(before) and is_committed(after):
        return Attribution("noise", "the commit is the same, and no recorded property differs")
    return Attribution("code", UNKNOWN_COMMITS)


def _named(differing: Mapping[str, Difference], names: Iterable[str]) -> str:
    return ", ".join(str(differing[name]) for name in names if name in differing)


def _clock(before: Measurement, after: Measurement, ratio: Ratio) -> str:
    """Say how far the clock explains the change; empty if it does not."""
    was, now = _clock_hz(before), _clock_hz(after)
    if not was or not now or not ratio.value > 0 or ratio.value == 1:
        return ""
    share = math.log(was / now) / math.log(ratio.value)
    if share < _EXPLAINED:
        return ""
    return f"the clock, {was / 1e6:.0f} → {now / 1e6:.0f} MHz, explains {min(share, 1):.0%} of it"


def _clock_hz(measured: Measurement) -> float | None:
    """Return the clock of the SMs, or of the CPU's cores on average over the calls."""
    sm_clock_hz = measured.median_sm_clock_hz
    if sm_clock_hz is not None:
        return sm_clock_hz
    readings = [reading for reading in measured.host if reading.cycles and reading.cpu_seconds > 0]
    seconds = math.fsum(reading.cpu_seconds for reading in readings)
    cycles = math.fsum(reading.cycles or 0.0 for reading in readings)
    return cycles / seconds if seconds else None


def _disturbed(
    before: Measurement, after: Measurement, ratio: Ratio, differing: Mapping[str, Difference]
) -> str:
    """Describe what disturbed only the slower of the two; empty if nothing is known."""
    which, slower, faster = "later", after, before
    if ratio.value < 1:
        which, slower, faster = "earlier", before, after
    if slower.disturbance and not faster.disturbance:
        return f"the {which} run {slower.disturbance}"
    if slower.other_launches and not faster.other_launches:
        return f"others launched {slower.other_launches} kernels during the {which} run"
    waiting = slower.waiting_share or 0.0
    if waiting - (faster.waiting_share or 0.0) > _LONG_WAIT:
        return f"its threads waited for a core for {waiting:.0%} of the {which} run"
    load = differing.get("load average")
    if load is not None and (float(load.after) > float(load.before)) == (ratio.value > 1):
        return str(load)
    return ""
