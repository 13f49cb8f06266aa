"""Changes between two stored runs, for a CI gate that noise does not trigger."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import statistics
from collections.abc import Mapping
from typing import get_args

from convtime.core.load import _C
from convtime.core.units import format_seconds
from convtime.regression.changes import Change, Changes
from convtime.regression.differences import (
    Difference,
    SameGpu,
    all_differences,
    cause,
    incomparable,
    on_host,
)
from convtime.regression.significance import LogMedian, LogRatio, adjusted, exponential, geomean
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import (
    ChangeVerdict,
    Ratio,
    Reason,
    Verdict,
    contradiction,
    other_metric,
)

# Standard deviation of medians between processes without a change: the largest for fresh processes
# on an H200 (benchmarks/results, repeatability and placement), and an assumption for times by the
# host's clock.
_BETWEEN_PROCESSES = 0.003
_BETWEEN_PROCESSES_ON_HOST = 0.005


def compare_runs(
    before: Mapping[str, Measurement],
    after: Mapping[str, Measurement],
    *,
    margin: float = 0.03,
    false_discoveries: float = 0.05,
    same_gpu: SameGpu = "model",
    relative: bool = False,
    instructions_margin: float = 0.01,
) -> Changes:
    """Judge the changes between two runs' measurements with the same names.

    The ratio is the later median over the earlier one. Its interval combines the intervals of both
    medians with the variation of medians between processes: a standard deviation of 0.3 %, or
    0.5 % for times by the host's clock. A name is ``slower`` or ``faster`` if its time is found to
    be beyond the margin at a false-discovery rate of ``false_discoveries``: among 300 names, some
    are beyond the margin by chance. It is ``same`` if the whole interval is within the margin.

    Args:
        before: the earlier run, by name.
        after: the later run, by name.
        margin: relative difference that counts as equal.
        false_discoveries: expected false-discovery rate, above 0 and below 1.
        same_gpu: how GPUs are recognized as the same: by ``model``, or by ``uuid``. Times on
            different GPUs are ``uncertain``.
        relative: judge a measurement relative to the baseline that its ``provenance`` names (the
            pytest plugin writes it there). Each sample is divided by the baseline's sample of the
            same round, and multiplied by the baseline's earlier median. Slowdowns that affect both
            equally cancel out, such as a lower clock of a CPU that others use. Baselines are then
            not judged; a baseline that changed beyond the margin is listed in the differences. If
            only one run knows a name's baseline, or the runs know different ones, this is also
            listed, and the name's own time is judged.
        instructions_margin: relative increase of instructions per call above which a change is
            ``more-instructions``. They are judged for single-threaded work on the CPU, if both
            runs counted them, apart from the verdict on times.

    Raises:
        ValueError: a margin or rate is out of range, or a measurement's samples are not finite
            numbers.
    """
    _check_share("margin", margin, zero=True)
    _check_share("false_discoveries", false_discoveries, zero=False)
    _check_share("instructions_margin", instructions_margin, zero=True)
    if same_gpu not in get_args(SameGpu):
        raise ValueError(f"same_gpu must be one of {get_args(SameGpu)}, got {same_gpu!r}")
    for name, measured in (*before.items(), *after.items()):
        _check_samples(name, measured)
    drifts: tuple[Difference, ...] = ()
    if relative:
        before, after, drifts = _beside_baselines(before, after, margin)
    pairs = {name: (before[name], after[name]) for name in before if name in after}
    compared = {name: _compare(*pair, same_gpu) for name, pair in pairs.items()}
    judged = [name for name, pair in compared.items() if pair.known is not None]
    chances = adjusted([_known(compared[name]).p_value(margin) for name in judged])
    adjusted_chances = dict(zip(judged, chances, strict=True))

    def change(name: str) -> Change:
        if name not in pairs:
            known = before.get(name) or after[name]
            verdict: ChangeVerdict = "missing" if name in before else "new"
            field = "before" if name in before else "after"
            found = Change(name, verdict, **{field: known.median})  # type: ignore[arg-type]
        else:
            chance = adjusted_chances.get(name)
            found = _judge(name, pairs[name], compared[name], margin, chance, false_discoveries)
            found = _with_instructions(found, pairs[name], instructions_margin)
        return dataclasses.replace(found, reproducer=_reproducer(after.get(name)))

    found = (*all_differences(pairs.values()), *drifts)
    return Changes(
        changes=tuple(change(name) for name in dict.fromkeys((*before, *after))),
        margin=float(margin),
        false_discoveries=float(false_discoveries),
        geomean=geomean([_known(compared[name]) for name in judged]),
        differences=found,
        cause=cause(found, same_gpu),
    )


_Run = Mapping[str, Measurement]


def _beside_baselines(
    before: _Run, after: _Run, margin: float
) -> tuple[_Run, _Run, tuple[Difference, ...]]:
    """Return both runs without baselines, at their earlier speed; and the changed baselines."""
    known = {
        name: (_baseline_of(name, before), _baseline_of(name, after))
        for name in before
        if name in after
    }
    baselines = {name: was for name, (was, now) in known.items() if was and was == now}
    speeds = {name: before[name].median for name in baselines.values()}

    def seconds(run: _Run, name: str) -> tuple[float, ...]:
        baseline = baselines[name]
        rounds = zip(run[name].seconds, run[baseline].seconds, strict=True)
        return tuple(own * speeds[baseline] / other for own, other in rounds)

    def scaled(run: _Run) -> _Run:
        return {
            # The other metrics are not scaled to the baseline.
            name: dataclasses.replace(
                measured,
                seconds=seconds(run, name),
                busy_seconds=(),
                span_seconds=(),
                sum_seconds=(),
            )
            if name in baselines
            else measured
            for name, measured in run.items()
            if name not in speeds
        }

    drifts = [
        Difference(f"baseline of {name}", was or "unknown", now or "unknown")
        for name, (was, now) in known.items()
        if was != now  # then judged by its own time
    ]
    drifts += [
        Difference(f"baseline {name}", format_seconds(speed), format_seconds(after[name].median))
        for name, speed in sorted(speeds.items())
        if abs(after[name].median / speed - 1) > margin
    ]
    return scaled(before), scaled(after), tuple(drifts)


def _baseline_of(name: str, run: _Run) -> str:
    """Return the name of the baseline that it was interleaved with; empty if it is unknown.

    A measurement that has a baseline is judged, and therefore cannot be a baseline.
    """
    baseline = run[name].provenance.get("baseline")
    if not isinstance(baseline, str) or baseline not in run or baseline == name:
        return ""
    if run[baseline].provenance.get("baseline") in run:
        return ""
    seconds = run[baseline].seconds
    return (
        baseline if len(seconds) == len(run[name].seconds) and min(seconds, default=0) > 0 else ""
    )


def _reproducer(measured: Measurement | None) -> str:
    return "" if measured is None else str(measured.provenance.get("reproducer", ""))


def _check_samples(name: str, measured: Measurement) -> None:
    wrong = next((value for value in measured.seconds if not math.isfinite(value)), None)
    if wrong is not None:
        raise ValueError(f"{reprlib.repr(name)}: its seconds must be finite numbers, got {wrong}")
    for what in ("places", "batches"):
        given = len(getattr(measured, what))
        if given not in (0, len(measured.seconds)):
            raise ValueError(
                f"{reprlib.repr(name)}: its {what} must be known for all {len(measured.seconds)} "
                f"samples or for none, got {given}"
            )


def _check_share(what: str, value: float, *, zero: bool) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and (0 < value < 1 or (zero and value == 0))):
        least = "0 or more" if zero else "above 0"
        raise ValueError(f"{what} must be a share, {least} and below 1, got {value!r}")


@dataclasses.dataclass(frozen=True)
class _Compared:
    """A ratio of two medians; ``known`` is None if they cannot be judged, for a reason."""

    known: LogRatio | None
    ratio: Ratio | None
    reason: Reason | None = None
    sentence: str = ""


def _known(compared: _Compared) -> LogRatio:
    assert compared.known is not None
    return compared.known


def _compare(before: Measurement, after: Measurement, same_gpu: SameGpu) -> _Compared:
    for which, measured in (("before", before), ("now", after)):
        if not measured.median > 0:
            why = (
                f"{which} it issued no work to the GPU"
                if measured.no_gpu_work
                else f"its median {which} is {measured.median:.3g} s"
            )
            return _Compared(None, None, "no-time", f"{why}, so there is no ratio")
    pair = LogRatio(_log_median(after), _log_median(before))
    low, high = pair.interval()
    ratio = Ratio(exponential(pair.value), exponential(low), exponential(high))
    why = incomparable(before, after, same_gpu)
    if why:
        return _Compared(None, ratio, "other-conditions", why)
    return _Compared(pair, ratio)


def _log_median(measured: Measurement) -> LogMedian:
    between = _BETWEEN_PROCESSES_ON_HOST if on_host(measured) else _BETWEEN_PROCESSES
    if measured.between_runs:
        between = 0.0  # already included in the interval
    return LogMedian.of_interval(
        measured.median, *measured.median_interval, measured.interval_count, between
    )


def _judge(
    name: str,
    pair: tuple[Measurement, Measurement],
    compared: _Compared,
    margin: float,
    chance: float | None,
    false_discoveries: float,
) -> Change:
    verdict: Verdict = "uncertain"
    reason, sentence = compared.reason, compared.sentence
    if chance is not None:
        ratio = compared.ratio
        assert ratio is not None
        if chance <= false_discoveries:
            verdict = "slower" if ratio.value > 1 else "faster"
        else:
            alone = _C.judge(ratio.low, ratio.high, margin)
            verdict = "same" if alone == "same" else "uncertain"
            if verdict == "uncertain":
                own_chance = _known(compared).p_value(margin)
                if alone != "uncertain" and own_chance > false_discoveries:
                    reason, sentence = (
                        "at-the-margin",
                        (
                            f"it would be {alone} at a false-discovery rate of "
                            f"{own_chance:.2g}, but is not at {false_discoveries:.2g}"
                        ),
                    )
                else:
                    reason, sentence = _doubt(ratio, margin, alone, chance, pair)
    contradicted = _contradiction(verdict, pair, margin)
    before, after = (measured.median for measured in pair)
    return Change(
        name,
        verdict,
        before,
        after,
        compared.ratio,
        chance,
        reason,
        sentence="; ".join(filter(None, (contradicted, sentence))),
        contradiction=contradicted,
    )


def _with_instructions(
    change: Change, pair: tuple[Measurement, Measurement], margin: float
) -> Change:
    before, after = (measured.instructions for measured in pair)
    if not before or after is None:
        return dataclasses.replace(change, instructions_reason=_why_not_counted(pair))
    ratio = after / before
    change = dataclasses.replace(change, instructions_ratio=ratio)
    if change.reason == "other-conditions":
        return dataclasses.replace(change, instructions_reason=change.sentence)
    if any(map(_by_several_threads, pair)):
        return dataclasses.replace(
            change,
            instructions_reason="several threads computed, and threads that wait for each other "
            "execute instructions, too; use one thread",
        )
    if ratio <= 1 + margin:
        return change
    more = (
        f"executes {ratio - 1:.2%} more instructions per call ({before:.4g} → {after:.4g}), which "
        "are not time"
    )
    sentence = "; ".join(filter(None, (change.sentence, more)))
    return dataclasses.replace(change, more_instructions=more, sentence=sentence)


def _why_not_counted(pair: tuple[Measurement, Measurement]) -> str:
    for which, measured in zip(("earlier", "later"), pair, strict=True):
        if measured.instructions is None:
            reason = measured.counters_reason or (
                "it did not read the CPU's counters"
                if measured.device == "cpu"
                else "they are counted for work on the CPU only"
            )
            return f"the {which} run has no instruction counts ({reason})"
    return "the earlier run counted no instructions"


def _by_several_threads(measured: Measurement) -> bool:
    threads = [each.threads for each in measured.host if each.threads is not None]
    return bool(threads) and statistics.median(threads) > 1


def _contradiction(verdict: Verdict, pair: tuple[Measurement, Measurement], margin: float) -> str:
    """Describe contradictory verdicts on busy time, span or another metric; empty for none."""
    metric = pair[0].metric.used
    other = other_metric(metric)
    series = [getattr(measured, f"{other}_seconds") for measured in pair]
    if verdict == "uncertain" or not all(series):
        return ""
    before, after = (
        dataclasses.replace(measured, seconds=seconds)
        for measured, seconds in zip(pair, series, strict=True)
    )
    if not min(before.median, after.median) > 0:
        return ""
    low, high = LogRatio(_log_median(after), _log_median(before)).interval()
    ratio = Ratio(after.median / before.median, exponential(low), exponential(high))
    return contradiction(verdict, metric, ratio.verdict(margin), other, ratio)


def _doubt(
    ratio: Ratio, margin: float, alone: str, chance: float, pair: tuple[Measurement, Measurement]
) -> tuple[Reason, str]:
    if alone != "uncertain":
        return "one-of-many", (
            f"it would be {alone} if it were the only one, but among all names a difference like "
            f"this can occur by chance (adjusted p-value {chance:.2g})"
        )
    if not all(math.isfinite(measured.median_interval[0]) for measured in pair):
        few = " and ".join(str(len(measured.seconds)) for measured in pair)
        return "too-few-samples", f"{few} samples give no interval at that confidence"
    half = (ratio.high - ratio.low) / 2
    if half <= margin:
        return "at-the-margin", (
            f"the margin's edge lies within {ratio.low:.4f} .. {ratio.high:.4f}"
        )
    interval = f"{ratio.low:.4f} .. {ratio.high:.4f}"
    return "wide-interval", f"the interval, {interval}, is wider than the margin of {margin:.2%}"
