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
    found = {each.what: each for each in differences(before, after)}
    method = _named(found, METHOD)
    if method:
        return Attribution("method", method)
    work = _changed_work(before, after)
    if work:
        return Attribution("code", work)
    if same_gpu == "model":
        found.pop("gpu_uuid", None)
    hardware = _named(found, HARDWARE) or _clock(before, after, ratio)
    if hardware:
        return Attribution("hardware or clocks", hardware)
    code = _named(found, (*CODE, *SOFTWARE))
    same_work = _same_work(before, after)
    disturbed = _disturbed(before, after, ratio, found)
    if disturbed and (same_work or not code):
        return Attribution("noise", disturbed)
    if others_alike:
        evidence = (others_alike, same_work)
        return Attribution("hardware or clocks", "; ".join(filter(None, evidence)))
    if code:
        return Attribution("code", f"{code}; no other recorded property explains it")
    if is_committed(before) and is_committed(after):
        return Attribution("noise", "the commit is the same, and no recorded property differs")
    return Attribution("code", UNKNOWN_COMMITS)


def _named(found: Mapping[str, Difference], what: Iterable[str]) -> str:
    return ", ".join(str(found[each]) for each in what if each in found)


def _changed_work(before: Measurement, after: Measurement) -> str:
    """Describe a difference in the work that a call does; empty if none is known."""
    was, now = ({each.label for each in one.activities} for one in (before, after))
    if was and now and was != now:
        gone, new = (", ".join(sorted(each)) or "none" for each in (was - now, now - was))
        return f"it launches other kernels: {gone} → {new}"
    instructions = _instructions(before, after)
    if instructions is not None and abs(instructions - 1) > _SAME_INSTRUCTIONS:
        return f"it executes {instructions:.4g}× the instructions"
    return ""


def _same_work(before: Measurement, after: Measurement) -> str:
    instructions = _instructions(before, after)
    if instructions is None or abs(instructions - 1) > _SAME_INSTRUCTIONS:
        return ""
    return "it executes as many instructions as before"


def _instructions(before: Measurement, after: Measurement) -> float | None:
    was, now = before.instructions, after.instructions
    return now / was if was and now is not None else None


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
    known = sorted(clock for clock in measured.sm_clocks_hz if clock)
    if known:
        return known[len(known) // 2]
    readings = [each for each in measured.host if each.cycles and each.cpu_seconds > 0]
    seconds = math.fsum(each.cpu_seconds for each in readings)
    return math.fsum(each.cycles or 0.0 for each in readings) / seconds if seconds else None


def _disturbed(
    before: Measurement, after: Measurement, ratio: Ratio, found: Mapping[str, Difference]
) -> str:
    """Describe what disturbed only the slower of the two; empty if nothing is known."""
    pairs = (("later", after, before), ("earlier", before, after))
    which, slower, faster = pairs[ratio.value < 1]
    if slower.disturbance and not faster.disturbance:
        return f"the {which} run {slower.disturbance}"
    if slower.other_launches and not faster.other_launches:
        return f"others launched {slower.other_launches} kernels during the {which} run"
    waiting = slower.waiting_share or 0.0
    if waiting - (faster.waiting_share or 0.0) > _LONG_WAIT:
        return f"its threads waited for a core for {waiting:.0%} of the {which} run"
    load = found.get("load average")
    if load is not None and (float(load.after) > float(load.before)) == (ratio.value > 1):
        return str(load)
    return ""
