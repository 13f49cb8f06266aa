"""Helpers that rules use to weigh differences of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from convtime.core.units import format_seconds
from convtime.diagnosis.diagnosis import Account, Cause
from convtime.diagnosis.evidence import Evidence, Timing

#: A function that looks for one cause.
Rule = Callable[[Evidence, Account], Iterator[Cause]]

SURE, LIKELY, POSSIBLE = 0.95, 0.75, 0.5


def extremes(times: Mapping[str, Timing]) -> tuple[tuple[str, Timing], tuple[str, Timing]]:
    """Return the slowest and the fastest of several conditions."""
    found = sorted(times.items(), key=lambda entry: entry[1].median)
    return found[-1], found[0]


def best_change(evidence: Evidence, contrast: str) -> tuple[Timing, str, Timing] | None:
    """Return the time ``as-is``, and the fastest change and its name; None if none is faster."""
    others = dict(evidence.contrasts.get(contrast, {}))
    here = others.pop("as-is", None)
    if here is None or not others:
        return None
    name, best = min(others.items(), key=lambda entry: entry[1].median)
    return (here, name, best) if best.median < here.median else None


def effect_of(slower: Timing, faster: Timing, account: Account, *, in_cycles: bool = True) -> float:
    """Return the difference as a share of a call's time, without the effect of different clocks."""
    share = 1 - faster.median / slower.median if slower.median > 0 else 0.0
    if in_cycles and slower.cycles and faster.cycles:
        share = min(share, 1 - faster.cycles / slower.cycles)
    share = min(max(0.0, share), 1.0)
    return share * min(1.0, slower.median / max(account.seconds, 1e-12))


def confidence_in(slower: Timing, faster: Timing) -> float:
    """Return the confidence in the difference, based on the two intervals."""
    if slower.low is None or faster.high is None:
        return POSSIBLE
    if not slower.surely_above(faster):
        return 0.0
    # Not a ratio: the faster time is 0 if it issues no GPU work.
    apart = slower.low - faster.high
    return SURE if apart > (slower.median - faster.median) / 2 else LIKELY


def told_of(evidence: Evidence, contrast: str) -> tuple[str, ...]:
    """Return a contrast's times as one sentence."""
    times = (
        f"{name} {format_seconds(each.median)}"
        for name, each in evidence.contrasts.get(contrast, {}).items()
    )
    told = ", ".join(times)
    return (f"{contrast}: {told}",) if told else ()
