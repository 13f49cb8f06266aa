"""Check whether candidates that were timed interleaved take the same time in isolation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from convtime.core.errors import first_line
from convtime.timing.candidate import Candidate
from convtime.timing.comparison import Interference
from convtime.timing.measurement import Measurement
from convtime.timing.options import Options
from convtime.timing.sampling.measure import measure
from convtime.view.wording import format_seconds

_SHARE = 0.1  # of the comparison's own time, for all candidates together
_LEAST_SECONDS = 0.02  # for each candidate, if that is more
_WARMUP_SHARE = 0.25  # of that; one-time work is already done after the comparison
_MIN_SAMPLES = 10


def find_interference(
    candidates: Sequence[Candidate],
    beside: Mapping[str, Measurement],
    options: Options,
    seconds_left: float,
) -> tuple[dict[str, Interference], str]:
    """Time each candidate alone, in a tenth of the comparison's time in total, or in 0.02 s each.

    Args:
        candidates: candidates of the comparison.
        beside: their measurements, by name.
        options: options of the comparison.
        seconds_left: seconds until its timeout.

    Returns:
        The candidates whose two medians differ by more than both intervals and the margin, by name;
        and why others may not have been checked, empty if all were.
    """
    found: dict[str, Interference] = {}
    one = next(iter(beside.values()))
    if any(measured.regime != "as-is" for measured in beside.values()):
        return found, f"regime {one.regime.used!r} would have to be set up again for each candidate"
    rounds = len(one.seconds)
    assert one.warmup_calls is not None  # only measurements of other tools have None
    assert one.warmup_seconds is not None
    assert one.sampling_seconds is not None
    spent = one.warmup_seconds + one.sampling_seconds
    seconds_per_call = spent / (one.warmup_calls + rounds * len(beside))
    budget = max(_LEAST_SECONDS, _SHARE * spent / len(candidates))
    if _MIN_SAMPLES * seconds_per_call > (1 - _WARMUP_SHARE) * budget:
        return found, f"{_MIN_SAMPLES} calls of each alone take more than a tenth of the comparison"
    if len(candidates) * budget > seconds_left:
        return found, "the timeout leaves no time for it"
    alone_options = dataclasses.replace(
        options,
        regime="as-is",
        warmup=_WARMUP_SHARE * budget,
        stop="budget",
        min_samples=_MIN_SAMPLES,
        budget=(1 - _WARMUP_SHARE) * budget,
        log=None,
    )
    reason = ""
    for candidate in candidates:
        try:
            (alone,) = measure([candidate], alone_options)
        except Exception as error:  # the calls may raise anything; keep the measurements
            reason = f"{candidate.name!r} could not be timed alone ({first_line(error)})"
            continue
        pair = beside[candidate.name], alone
        if alone.method != pair[0].method:
            reason = f"{candidate.name!r} alone is timed by {alone.method}"
        elif _differ(*pair, float(options.margin)):
            found[candidate.name] = _interference(*pair)
    return found, reason


def _differ(beside: Measurement, alone: Measurement, margin: float) -> bool:
    """Whether the two medians differ by more than both intervals and the margin."""
    (low, high), (alone_low, alone_high) = beside.median_interval, alone.median_interval
    return max(low - alone_high, alone_low - high) > margin * alone.median


def _interference(beside: Measurement, alone: Measurement) -> Interference:
    ratio = beside.median / alone.median
    times = [format_seconds(measured.median) for measured in (beside, alone)]
    sentence = f"takes {times[0]} beside the others and {times[1]} alone ({ratio:.3f})"
    return Interference(ratio, alone.median, sentence)
