"""Recorded differences between two measurements, other than their times."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from convtime.timing.measurement import CONDITIONS, Condition, Measurement

#: How two GPUs are recognized as the same.
SameGpu = Literal["model", "uuid"]

#: Fields by what a difference in them points to, in the order of how much it explains.
HARDWARE = ("gpu", "gpu_uuid", "cpu", "driver", "cores")
SOFTWARE = ("cuda", "cudnn", "torch")
CODE = ("commit", "uncommitted changes")
_CONDITIONS = (*CONDITIONS, "clocks", "pin")
METHOD = (*_CONDITIONS, "convtime", "threads", "tracers", "gc", "huge_pages")
_PROVENANCE = (
    *HARDWARE,
    *SOFTWARE,
    *("convtime", "threads", "tracers", "gc", "huge_pages", "governor"),
)
# Times that differ in one of these fields are not comparable.
_OF_ANOTHER_KIND = ("method", "cache", "placement", "pages")
_UNKNOWN = (None, "unknown")
_SAME_CLOCK = 0.01
_SAME_LOAD = 1.0  # processes
_SHOWN_OF_COMMIT = 10  # characters


@dataclasses.dataclass(frozen=True)
class Difference:
    """A recorded property that differs between both runs.

    Attributes:
        what: name of the property.
        before: its earlier value, in words.
        after: its present value, in words.
        count: number of the measurements in both runs for which it differs.
    """

    what: str
    before: str
    after: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.what}: {self.before} → {self.after}"


def all_differences(
    pairs: Iterable[tuple[Measurement, Measurement]],
) -> tuple[Difference, ...]:
    """Return the differences of all pairs, each once, with the number of pairs that have it."""
    counts = Counter(difference for pair in pairs for difference in differences(*pair))
    order = (*CODE, *_PROVENANCE)
    ranks = {what: rank for rank, what in enumerate(order)}
    counted = [dataclasses.replace(difference, count=count) for difference, count in counts.items()]
    return tuple(sorted(counted, key=lambda difference: ranks.get(difference.what, len(order))))


def differences(before: Measurement, after: Measurement) -> Iterator[Difference]:
    """Yield recorded differences; a value that only one of the two has is not a difference."""
    now = _facts(after)
    for what, value in _facts(before).items():
        known = value not in _UNKNOWN and now[what] not in _UNKNOWN
        if known and value != now[what]:
            yield Difference(what, str(value), str(now[what]))
    dirty = git_of(before).get("dirty"), git_of(after).get("dirty")
    # The changes themselves are not recorded: they count as different unless the runs are equal.
    if None not in dirty and any(dirty) and not is_same(before, after):
        was, is_now = ("yes" if one else "no" for one in dirty)
        yield Difference("uncommitted changes", was, is_now)
    clock, new_clock = before.median_sm_clock_hz, after.median_sm_clock_hz
    if clock and new_clock and abs(new_clock - clock) > _SAME_CLOCK * max(clock, new_clock):
        yield Difference("SM clock", f"{clock / 1e6:.0f} MHz", f"{new_clock / 1e6:.0f} MHz")
    load, new_load = _load(before), _load(after)
    if load is not None and new_load is not None and abs(new_load - load) > _SAME_LOAD:
        yield Difference("load average", f"{load:.1f}", f"{new_load:.1f}")


def _facts(measured: Measurement) -> dict[str, Any]:
    facts = {what: measured.provenance.get(what) for what in _PROVENANCE}
    if "tracers" in measured.provenance and facts["tracers"] is None:  # older files lack the field
        facts["tracers"] = "none"
    facts["commit"] = git_of(measured).get("commit")
    for what in (*_CONDITIONS, "exclusive"):
        value = getattr(measured, what)
        facts[what] = value.used if isinstance(value, Condition) else value
    facts["pin"] = "none" if measured.pin is None else measured.pin
    return facts


def is_committed(measured: Measurement) -> bool:
    """Return whether its code is that of a recorded commit."""
    git = git_of(measured)
    return bool(git.get("commit")) and git.get("dirty") is False


def environment(pairs: Iterable[tuple[Measurement, Measurement]]) -> dict[str, str]:
    """Return the machine, the versions and the commits of the first pair, with their changes."""
    pair = next(iter(pairs), None)
    if pair is None:
        return {}
    was, now = map(_facts, pair)
    machine = "cpu" if pair[1].device == "cpu" else "gpu"
    values = {
        what: dict.fromkeys(
            str(facts[what])[: _SHOWN_OF_COMMIT if what == "commit" else None]
            for facts in (was, now)
            if facts[what]
        )
        for what in (machine, "driver", *SOFTWARE, "convtime", "commit")
    }
    return {what: " → ".join(distinct) for what, distinct in values.items() if distinct}


def git_of(measured: Measurement) -> Mapping[str, Any]:
    """Return the commit and whether it was changed, as far as its provenance has them."""
    git = measured.provenance.get("git")
    return git if isinstance(git, Mapping) else {}


def is_same(before: Measurement, after: Measurement) -> bool:
    """Return whether both are one measurement, e.g. a file compared with a copy of it."""
    return before.seconds == after.seconds and before.provenance == after.provenance


def _load(measured: Measurement) -> float | None:
    load = measured.provenance.get("load_average")
    return float(load) if isinstance(load, int | float) else None


def on_host(measured: Measurement) -> bool:
    """Return whether its times were measured with the host's clock."""
    return measured.method in ("sync", "cpu") or measured.device == "cpu"


def incomparable(before: Measurement, after: Measurement, same_gpu: SameGpu) -> str:
    """Return why two times cannot be compared, as a clause; empty if they can be."""
    differing = {difference.what: difference for difference in differences(before, after)}
    for what in _OF_ANOTHER_KIND:
        if what in differing:
            return f"its {differing[what]}: these times are not comparable"
    if before.device.partition(":")[0] != after.device.partition(":")[0]:
        return f"it ran on {before.device} and runs on {after.device}"
    if on_host(before) and "cpu" in differing:
        return f"it was measured on another CPU ({differing['cpu']})"
    if before.device != "cpu":
        if "gpu" in differing:
            return f"it was measured on another GPU ({differing['gpu']})"
        if same_gpu == "uuid" and "gpu_uuid" in differing:
            return f"it was measured on another GPU of the same model ({differing['gpu_uuid']})"
    if "regime" in differing and "SM clock" in differing:
        return f"its {differing['regime']}, at another clock ({differing['SM clock']})"
    return ""
