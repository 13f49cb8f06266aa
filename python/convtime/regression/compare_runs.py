"""Changes between two stored runs, for a CI gate that noise does not trigger."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import statistics
from collections.abc import Collection, Mapping
from typing import get_args

from convtime.core.checks import check_one_of, check_share, require
from convtime.core.errors import InputError
from convtime.core.load import _C
from convtime.regression.attribution import Attribution, attribute
from convtime.regression.baseline import Baseline, reference_of, relative_to
from convtime.regression.changes import Change, Changes, CommonChange, common_change
from convtime.regression.differences import (
    Difference,
    SameGpu,
    all_differences,
    environment,
    incomparable,
    is_same,
)
from convtime.regression.noise import FALSE_ALARMS, Noise, calibrated_log_median, log_median
from convtime.regression.significance import LogRatio, adjusted, geomean
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import (
    Ratio,
    Reason,
    Verdict,
    contradiction,
    other_metric,
)
from convtime.view.wording import format_seconds

_MARGIN = 0.03  # of tests without a calibrated one


def compare_runs(
    before: Mapping[str, Measurement] | Baseline,
    after: Mapping[str, Measurement] | Baseline,
    *,
    margin: float | None = None,
    false_discoveries: float = 0.05,
    same_gpu: SameGpu = "model",
    relative: bool = False,
    instructions_margin: float = 0.01,
    others: Collection[Change] = (),
) -> Changes:
    """Judge the changes between two runs' measurements with the same names.

    The ratio is the later median over the earlier one. Its interval combines the intervals of both
    medians with the variation of medians between processes: a standard deviation of 0.3 %, or
    0.5 % for times by the host's clock. A name is ``slower`` or ``faster`` if its time is found to
    be beyond the margin at a false-discovery rate of ``false_discoveries``: among 300 names, some
    are beyond the margin by chance. It is ``same`` if the whole interval is within the margin, or
    if both runs have the very same samples, as when a file is compared with itself.

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
        others: changes of names that these runs do not have, if only suspects were measured again.
            The hardware is blamed for a change that most of all names have in common.

    Raises:
        ValueError: a margin or rate is out of range, or a measurement's samples are not finite
            numbers.
    """
    if margin is not None:
        check_share("margin", margin, or_zero=True)
    check_share("false_discoveries", false_discoveries)
    check_share("instructions_margin", instructions_margin, or_zero=True)
    check_one_of("same_gpu", same_gpu, get_args(SameGpu))
    earlier, later = (
        run if isinstance(run, Baseline) else Baseline(run) for run in (before, after)
    )
    for name, measured in (*earlier.measurements.items(), *later.measurements.items()):
        _check_samples(name, measured)
    fixed = _MARGIN if margin is None else float(margin)
    drifts: tuple[Difference, ...] = ()
    if relative:
        earlier, later, drifts = _relative_to_baselines(earlier, later, fixed)
    were, now = earlier.measurements, later.measurements
    pairs = {name: (were[name], now[name]) for name in were if name in now}
    compared = {name: _compare(name, earlier, later, same_gpu) for name in pairs}
    ratios = {name: pair.known for name, pair in compared.items() if pair.known is not None}
    noises = {name: compared[name].noise for name in ratios if margin is None}
    thresholds = _thresholds(ratios, noises, fixed, false_discoveries)

    def change(name: str) -> Change:
        if name not in now:
            return Change(name, "missing", before=were[name].median)
        reproducer = str(now[name].provenance.get("reproducer", ""))
        if name not in were:
            return Change(name, "new", after=now[name].median, reproducer=reproducer)
        judged = _judge(name, pairs[name], compared[name], thresholds.get(name))
        judged = _with_instructions(judged, pairs[name], instructions_margin)
        return dataclasses.replace(judged, reproducer=reproducer)

    changes = [change(name) for name in dict.fromkeys((*were, *now))]
    common = common_change([*changes, *(one for one in others if one.name not in pairs)])
    return Changes(
        changes=tuple(_attribute(one, pairs.get(one.name), common, same_gpu) for one in changes),
        margin=fixed,
        false_discoveries=float(false_discoveries),
        geomean=geomean([*ratios.values()]),
        differences=(*all_differences(pairs.values()), *drifts),
        environment=environment(pairs.values()),
    )


def _attribute(
    change: Change,
    pair: tuple[Measurement, Measurement] | None,
    common: CommonChange | None,
    same_gpu: SameGpu,
) -> Change:
    """Add the cause to a time that changed, or to instructions that did."""
    attribution = None
    if pair is not None and change.ratio is not None and change.verdict in ("slower", "faster"):
        alike = str(common) if common is not None and change.name in common.names else ""
        attribution = attribute(*pair, change.ratio, same_gpu, others_alike=alike)
    elif change.more_instructions:
        attribution = Attribution("code", change.more_instructions)
    return dataclasses.replace(change, attribution=attribution)


def _relative_to_baselines(
    before: Baseline, after: Baseline, margin: float
) -> tuple[Baseline, Baseline, tuple[Difference, ...]]:
    """Return both runs without baselines, at their earlier speed; and the changed baselines."""
    known = {
        name: (reference_of(name, before.measurements), reference_of(name, after.measurements))
        for name in before.measurements
        if name in after.measurements
    }
    baselines = {name: was for name, (was, now) in known.items() if was and was == now}
    speeds = {name: before.measurements[name].median for name in baselines.values()}

    def scaled(run: Baseline) -> Baseline:
        measurements = {
            name: relative_to(measured, run.measurements[baselines[name]], speeds[baselines[name]])
            if name in baselines
            else measured
            for name, measured in run.measurements.items()
            if name not in speeds
        }
        repeats = {name: one for name, one in run.repeats.items() if name not in baselines}
        for name in baselines.keys() & run.relative.keys():
            repeats[name] = run.relative[name].times(speeds[baselines[name]])
        return Baseline(measurements, repeats)

    drifts = [
        Difference(f"baseline of {name}", was or "unknown", now or "unknown")
        for name, (was, now) in known.items()
        if was != now  # then judged by its own time
    ]
    for name, speed in sorted(speeds.items()):
        now = after.measurements[name].median
        if abs(now / speed - 1) > margin:
            drifts.append(
                Difference(f"baseline {name}", format_seconds(speed), format_seconds(now))
            )
    return scaled(before), scaled(after), tuple(drifts)


def _check_samples(name: str, measured: Measurement) -> None:
    its, count = f"{reprlib.repr(name)}: its", len(measured.seconds)
    for value in measured.seconds:
        if not math.isfinite(value):
            raise InputError(f"{its} seconds must be finite numbers, got {value}")
    for what in ("places", "batches"):
        given = len(getattr(measured, what))
        require(
            given in (0, count),
            f"{its} {what} must be known for all {count} samples or for none, got {given}",
        )


@dataclasses.dataclass(frozen=True)
class _Compared:
    """A ratio of two medians; ``known`` is None if they cannot be judged, for a reason."""

    known: LogRatio | None
    ratio: Ratio | None
    is_same: bool  # both are one measurement, which its noise does not make uncertain
    reason: Reason | None = None
    sentence: str = ""
    noise: Noise | None = None  # calibrated


@dataclasses.dataclass(frozen=True)
class _Threshold:
    """What a name must exceed to be slower or faster.

    Attributes:
        margin: relative difference that counts as equal.
        tested: relative difference that must be exceeded beyond chance.
        chance: probability of exceeding it by chance, adjusted for the number of names.
        limit: largest such probability.
    """

    margin: float
    tested: float
    chance: float
    limit: float


def _thresholds(
    ratios: Mapping[str, LogRatio],
    noises: Mapping[str, Noise | None],
    margin: float,
    false_discoveries: float,
) -> dict[str, _Threshold]:
    """Return each name's threshold: the common margin, or for a name with a noise its own."""
    common = [name for name in ratios if noises.get(name) is None]
    chances = adjusted([ratios[name].p_value(margin) for name in common])
    thresholds = {
        name: _Threshold(margin, margin, chance, false_discoveries)
        for name, chance in zip(common, chances, strict=True)
    }
    for name, noise in noises.items():
        if noise is not None:
            thresholds[name] = _Threshold(
                noise.margin, 0.0, ratios[name].p_value(0.0), FALSE_ALARMS
            )
    return thresholds


def _compare(name: str, earlier: Baseline, later: Baseline, same_gpu: SameGpu) -> _Compared:
    before, after = earlier.measurements[name], later.measurements[name]
    for which, measured in (("before", before), ("now", after)):
        if not measured.median > 0:
            why = (
                f"{which} it issued no work to the GPU"
                if measured.no_gpu_work
                else f"its median {which} is {measured.median:.3g} s"
            )
            return _Compared(None, None, False, "no-time", f"{why}, so there is no ratio")
    was, now = earlier.repeats.get(name), later.repeats.get(name)
    noise = was.noise if was is not None else None
    if noise is not None:
        pair = LogRatio(
            calibrated_log_median(after, now, noise), calibrated_log_median(before, was, noise)
        )
    else:
        spread = max(0.0 if repeats is None else repeats.spread for repeats in (was, now))
        pair = LogRatio(log_median(after, now, spread), log_median(before, was, spread))
    why = incomparable(before, after, same_gpu)
    if why:
        return _Compared(None, pair.ratio(), False, "other-conditions", why)
    return _Compared(pair, pair.ratio(), is_same(before, after) and was == now, noise=noise)


def _judge(
    name: str,
    pair: tuple[Measurement, Measurement],
    compared: _Compared,
    threshold: _Threshold | None,
) -> Change:
    verdict: Verdict = "uncertain"
    reason, sentence = compared.reason, compared.sentence
    if threshold is not None:
        ratio = compared.ratio
        assert ratio is not None
        assert compared.known is not None
        if threshold.chance <= threshold.limit:
            verdict = "slower" if ratio.value > 1 else "faster"
        elif compared.is_same or _C.judge(ratio.low, ratio.high, threshold.margin) == "same":
            verdict = "same"
        else:
            reason, sentence = _why_uncertain(ratio, compared.known, threshold, pair)
    contradicted = _contradiction(verdict, pair, _MARGIN if threshold is None else threshold.margin)
    before, after = (measured.median for measured in pair)
    return Change(
        name,
        verdict,
        before,
        after,
        compared.ratio,
        None if threshold is None else threshold.chance,
        reason,
        sentence="; ".join(filter(None, (contradicted, sentence))),
        contradiction=contradicted,
        margin=None if threshold is None else threshold.margin,
    )


def _with_instructions(
    change: Change, pair: tuple[Measurement, Measurement], margin: float
) -> Change:
    before, after = (measured.instructions for measured in pair)
    if not before or after is None:
        return dataclasses.replace(change, instructions_reason=_why_not_counted(pair))
    ratio, more = after / before, ""
    reason = change.sentence if change.reason == "other-conditions" else _why_not_judged(pair)
    if ratio > 1 + margin and not reason:
        more = (
            f"executes {ratio - 1:.2%} more instructions per call ({before:.4g} → {after:.4g}), "
            "which are not time"
        )
    return dataclasses.replace(
        change,
        instructions_ratio=ratio,
        instructions_reason=reason,
        more_instructions=more,
        sentence="; ".join(filter(None, (change.sentence, more))),
    )


def _why_not_judged(pair: tuple[Measurement, Measurement]) -> str:
    threads = (
        [reading.threads for reading in measured.host if reading.threads is not None]
        for measured in pair
    )
    if any(counts and statistics.median(counts) > 1 for counts in threads):
        return (
            "several threads computed, and threads that wait for each other execute instructions, "
            "too; use one thread"
        )
    return ""


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


def _contradiction(verdict: Verdict, pair: tuple[Measurement, Measurement], margin: float) -> str:
    """Describe contradictory verdicts on busy time, span or another metric; empty for none."""
    metric = pair[0].metric.used
    other = other_metric(metric)
    before, after = (
        dataclasses.replace(measured, seconds=getattr(measured, f"{other}_seconds"))
        for measured in pair
    )
    if not (before.seconds and after.seconds and min(before.median, after.median) > 0):
        return ""
    ratio = LogRatio(log_median(after), log_median(before)).ratio()
    return contradiction(verdict, metric, ratio.verdict(margin), other, ratio)


def _why_uncertain(
    ratio: Ratio, known: LogRatio, threshold: _Threshold, pair: tuple[Measurement, Measurement]
) -> tuple[Reason, str]:
    alone = _C.judge(ratio.low, ratio.high, threshold.tested)
    if alone in ("slower", "faster"):
        own_chance = known.p_value(threshold.tested)
        if own_chance > threshold.limit:
            return "at-the-margin", (
                f"it would be {alone} at a false-discovery rate of {own_chance:.2g}, but is not "
                f"at {threshold.limit:.2g}"
            )
        return "one-of-many", (
            f"it would be {alone} if it were the only one, but among all names a difference like "
            f"this can occur by chance (adjusted p-value {threshold.chance:.2g})"
        )
    if not all(math.isfinite(measured.median_interval[0]) for measured in pair):
        few = " and ".join(str(len(measured.seconds)) for measured in pair)
        return "too-few-samples", f"{few} samples give no interval at that confidence"
    interval = f"{ratio.low:.4f} .. {ratio.high:.4f}"
    if (ratio.high - ratio.low) / 2 <= threshold.margin:
        return "at-the-margin", f"the margin's edge lies within {interval}"
    return "wide-interval", (
        f"the interval, {interval}, is wider than the margin of {threshold.margin:.2%}"
    )
