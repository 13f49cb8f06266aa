"""Comparisons of measurements: ratios, judgements with reasons, exit codes, and their table."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import statistics
from collections.abc import Collection, Iterable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import convtime
from convtime.core import codec
from convtime.core.load import _C
from convtime.timing.activity import DeviceActivity
from convtime.timing.comparison import FINDS, Agreement, Comparison, Interference
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import (
    Failure,
    Ratio,
    Verdict,
    check_failures,
    contradiction,
    exit_code_of,
    other_metric,
    why_uncertain,
)
from tests.helpers.measurements import changed, make, on_cpu
from tests.helpers.recorded import layers
from tests.helpers.texts import flat

KERNEL = DeviceActivity("kernel", "relu", (1, 1, 1), (1, 1, 1), 16, 0, 0, (1e-6,))
Ends = tuple[float, float]


def measured(
    name: str, seconds: Iterable[float], clocks_mhz: Iterable[float | None] = (), **fields: Any
) -> Measurement:
    clocks_hz = tuple(None if mhz is None else 1e6 * mhz for mhz in clocks_mhz)
    one = on_cpu(tuple(map(float, seconds)), name=name, stop_reason="budget")
    return changed(one, sm_clocks_hz=clocks_hz, **fields)


def of(*measurements: Measurement, margin: float = 0.01, **fields: Any) -> Comparison:
    return Comparison({each.name: each for each in measurements}, margin, **fields)


def spread(middle: float, half: float) -> list[float]:
    """Six samples, whose interval is their whole range: middle * (1 ± half)."""
    return [middle * (1 + share * half) for share in (-1, -0.5, 0, 0, 0.5, 1)]


def ends_of(middle: float, half: float) -> Ends:
    return middle * (1 - half), middle * (1 + half)


def sign_test(values: Any) -> Ends:
    """The distribution-free interval of a median with 95 % confidence."""
    ordered, count = np.sort(values), len(values)
    tails = np.cumsum([math.comb(count, k) for k in range(count)]) / 2.0**count
    outside = int(np.sum(tails <= 0.025))
    return (ordered[outside - 1], ordered[-outside]) if outside else (-math.inf, math.inf)


@settings(max_examples=40)
@given(st.integers(3, 39), st.floats(0.5, 2), st.sampled_from([0.0, 0.1]), st.integers(0, 99))
def test_ratios_are_medians_over_the_rounds(
    count: int, factor: float, uncertainty: float, seed: int
) -> None:
    """A drift that both share does not show. Overhead uncertainty moves both times."""
    random = np.random.default_rng(seed)
    under = np.linspace(1, 4, count)
    over = factor * under * random.normal(1, 0.02, count)
    comparison = of(
        measured("under", under, overhead_uncertainty=uncertainty / 2),
        measured("over", over, overhead_uncertainty=uncertainty),
    )
    found = comparison.ratio("over")
    assert found.value == pytest.approx(np.median(over / under))
    shifts = (-uncertainty, 0, uncertainty)
    lows, highs = zip(*[sign_test((over + by) / (under + by)) for by in shifts], strict=True)
    assert (found.low, found.high) == pytest.approx((min(lows), max(highs)))
    inverse = comparison.ratio("under", "over")
    assert inverse.value == pytest.approx(np.median(under / over))
    assert comparison.cycles_ratio("over") is None


@settings(max_examples=30)
@given(st.integers(0, 99), st.floats(0, 0.5))
def test_ratios_in_cycles_are_of_the_rounds_with_known_clocks(seed: int, missing: float) -> None:
    random = np.random.default_rng(seed)
    seconds = random.uniform(1, 2, (2, 30))
    clocks = random.uniform(1000, 2000, (2, 30))
    known = random.uniform(size=(2, 30)) >= missing
    told = np.where(known, clocks, None)
    pair = map(measured, ("under", "over"), seconds, told)
    found = of(*pair).cycles_ratio("over")
    under, over = (seconds * clocks)[:, known.all(0)]
    assert found is not None
    assert found.value == pytest.approx(np.median(over / under))
    assert (found.low, found.high) == pytest.approx(sign_test(over / under))


def test_ratios_count_a_place_once_and_know_the_clocks_tick() -> None:
    places = (*range(8),) * 8
    steps = (1.98e-6, 1.99e-6, 2e-6, 2.01e-6, 2.02e-6, 2.03e-6, 2.04e-6, 2.05e-6)
    base = measured("base", (2e-6,) * 64, places=places)
    other = measured("other", steps * 8, places=places)
    ratio = of(base, other).ratio("other")
    assert (ratio.low, ratio.high) == pytest.approx((0.99, 1.025))  # all of eight places
    without = (dataclasses.replace(each, places=()) for each in (base, other))
    assert of(*without).ratio("other").low > ratio.low
    equal = dataclasses.replace(base, places=(), clock_tick=32e-9)
    by_tick = of(equal, changed(equal, name="other")).ratio("other")
    unseen = (1 - 0.025 ** (1 / 64)) * 32e-9  # of a tick that none of 64 samples showed
    assert by_tick.high == pytest.approx(1 + 2**0.5 * unseen / 2e-6, rel=1e-4)


def verdict_of(ends: Ends, margin: float, doubt: float = 0.0) -> str:
    low, high = ends
    if 1 - low <= margin and high - 1 <= margin:
        return "same"
    if 1 - high > margin + doubt:
        return "faster"
    return "slower" if low - 1 > margin + doubt else "uncertain"


def expected_judgement(
    ends: Ends, margin: float, doubt: float, control: Ends | None, fresh: Ends | None
) -> tuple[str, str | None]:
    """The verdict and the reason, from the ends of the intervals."""
    verdict = verdict_of(ends, margin)
    if control is not None and verdict_of(control, margin, doubt) in ("faster", "slower"):
        return "uncertain", "control-differs"
    if verdict == "uncertain":
        narrow = ends[1] - ends[0] <= 2 * margin
        return verdict, "at-the-margin" if narrow else "wide-interval"
    if fresh is None:
        if verdict_of(ends, margin, doubt) == "uncertain":
            return "uncertain", "placement"
    elif verdict_of(fresh, margin) != verdict:
        return "uncertain", "not-confirmed"
    return verdict, None


# None of the ends is exactly at a margin.
FACTORS = st.sampled_from([0.9, 0.963, 0.975, 0.9893, 0.997, 1, 1.003, 1.0137, 1.026, 1.034, 1.07])
SPREADS = st.tuples(FACTORS, st.sampled_from([0.0004, 0.0023, 0.0147]))


@settings(max_examples=150)
@example((1.07, 0.0004), (1.026, 0.0004), None, True, 0.01)
@example((1.07, 0.0004), (1.026, 0.0004), None, False, 0.01)
@example((1.034, 0.0004), None, (1.003, 0.0147), False, 0.01)
@example((1.026, 0.0004), None, None, True, 0.01)
@given(
    SPREADS, st.none() | SPREADS, st.none() | SPREADS, st.booleans(), st.sampled_from([0.01, 0.03])
)
def test_a_judgement_follows_from_all_intervals(
    other: Ends, control: Ends | None, fresh: Ends | None, on_a_cpu: bool, margin: float
) -> None:
    """On a CPU, the placement of tensors makes small differences doubtful."""
    doubt = 0.02 if on_a_cpu else 0.0
    spreads = {"base": (1.0, 0.0), "other": other} | ({"control": control} if control else {})
    ends = {name: ends_of(*each) for name, each in spreads.items()}
    of_fresh = ends_of(*fresh) if fresh else None
    every = (
        measured(name, spread(*each), [1000] * 6, between_runs=0.01 * on_a_cpu)
        for name, each in spreads.items()
    )
    confirmation = {} if of_fresh is None else {"other": Ratio(1.0, *of_fresh)}
    control_name = "control" if control else ""
    comparison = of(*every, margin=margin, control=control_name, confirmation=confirmation)
    judged = comparison.judge("other")
    expected = expected_judgement(ends["other"], margin, doubt, ends.get("control"), of_fresh)
    assert (judged.verdict, judged.reason) == expected
    assert comparison.verdict("other") == judged.verdict
    assert judged.smallest_difference == pytest.approx(margin + doubt + other[1])
    spoiled = judged.reason == "control-differs"
    assert judged.in_cycles == ("uncertain" if spoiled else verdict_of(ends["other"], margin))
    assert judged.contradiction == ""
    assert ("'control' does the same as the baseline" in judged.sentence) == spoiled
    assert comparison.findings == (("other", judged.verdict),)
    assert comparison.exit_code() == int(judged.verdict == "slower")
    assert comparison.exit_code(uncertain=3) == (3 if expected[1] else comparison.exit_code())
    if control:
        by_control = comparison.judge("control")
        expected = expected_judgement(ends["control"], margin, doubt, None, None)
        assert (by_control.verdict, by_control.reason) == expected
        # A confirmation is of the comparison's own baseline.
        assert comparison.judge("other", "control").reason != "not-confirmed"
    reverse = comparison.judge("base", "other")
    assert reverse.ratio.value == pytest.approx(1 / other[0])
    assert comparison.judge("base").verdict == "same"


def test_placement_is_doubtful_only_if_both_times_are_of_a_cpu() -> None:
    assert pytest.approx(0.02) == _C.DOUBT_OF_CPU_RATIOS
    for base, other in ((0.01, 0.0), (0.0, 0.01)):
        pair = (
            measured("base", [1.0] * 6, between_runs=base),
            measured("other", [1.02] * 6, between_runs=other),
        )
        assert of(*pair).judge("other").reason is None


@pytest.mark.parametrize(
    ("seconds", "fields", "reason", "said"),
    [
        ([1.0] * 5, {}, "too-few-samples", "5 rounds are too few for an interval"),
        (spread(1.0, 0.05), {"disturbance": "waited for a core"}, "disturbed", "'x' waited for"),
        (spread(1.012, 0.001), {"overhead_uncertainty": 0.5}, "method-cost", "it would be slower"),
    ],
)
def test_uncertain_verdicts_say_why(
    seconds: list[float], fields: dict[str, Any], reason: str, said: str
) -> None:
    base = measured("base", [1.0] * len(seconds), **fields | {"disturbance": ""})
    comparison = of(base, measured("x", seconds, **fields))
    judged = comparison.judge("x")
    assert (judged.verdict, judged.reason) == ("uncertain", reason)
    assert re.search(said, judged.sentence), judged.sentence
    assert f"x against base is uncertain ({reason}): {judged.sentence}" in str(comparison)
    if reason == "too-few-samples":
        assert judged.smallest_difference == math.inf
        assert comparison.to_dict()["judgements"]["x"]["smallest_difference"] is None


@settings(max_examples=40)
@given(st.sampled_from([0.7, 0.996, 1.004, 1.2]), st.sampled_from([0.7, 0.996, 1.004, 1.2]))
def test_verdicts_of_busy_time_and_span_may_contradict_each_other(busy: float, span: float) -> None:
    def by_kernels(name: str, busy: float, span: float) -> Measurement:
        of_busy, of_span = ((1e-4 * each,) * 30 for each in (busy, 1.1 * span))
        all_seconds = {"busy_seconds": of_busy, "span_seconds": of_span, "sum_seconds": of_busy}
        one = measured(name, of_busy, method="kernel", metric="busy", device="cuda:0")
        return changed(one, **all_seconds)

    comparison = of(by_kernels("a", 1, 1), by_kernels("b", busy, span))
    judged = comparison.judge("b")
    verdicts = [verdict_of((ratio, ratio), 0.01) for ratio in (busy, span)]
    contradict = verdicts[0] != verdicts[1]
    assert judged.verdict == verdicts[0]
    assert comparison.judged_on.startswith("busy time")
    assert comparison.exit_code("contradictory") == int(contradict)
    told = f"{verdicts[0]} in busy time, but {verdicts[1]} in span ({span:.4f}"
    assert (told in judged.contradiction) == (told in str(comparison)) == contradict


@pytest.mark.parametrize(
    ("seconds", "clocks_mhz", "verdict", "in_cycles", "sentence"),
    [
        ([1.2] * 6, [1650] * 6, "slower", "same", "clock (1650 MHz against 1980)"),
        ([1.0] * 6, [1650] * 6, "same", "faster", "clock (1650 MHz against 1980)"),
        ([1.2] * 6, [1980] * 6, "slower", "slower", ""),
        ([1.2] * 6, [None] * 6, "slower", None, ""),
        ([1.0, 1.1, 1.2] * 2, [1980, 1800, 1650] * 2, "uncertain", "same", "clock (1800 MHz ag"),
    ],
)
def test_verdicts_on_time_and_on_cycles(
    seconds: list[float],
    clocks_mhz: list[float | None],
    verdict: str,
    in_cycles: str | None,
    sentence: str,
) -> None:
    base = measured("base", [1.0] * 6, [1980] * 6)
    comparison = of(base, measured("other", seconds, clocks_mhz))
    judged = comparison.judge("other")
    assert (judged.verdict, judged.in_cycles) == (verdict, in_cycles)
    told = f"{verdict} in time, {in_cycles} in cycles: {sentence}" if sentence else ""
    assert judged.sentence.startswith(told)
    assert bool(judged.sentence) is bool(sentence)
    assert judged.sentence in flat(comparison)
    assert judged.sentence in comparison._repr_html_()


def test_a_candidate_without_gpu_work_leaves_the_others_their_verdicts() -> None:
    fast, slow, idle = (
        measured(name, [1e-6 * time] * 30, method="kernel", activities=(KERNEL,) * (time > 0))
        for name, time in (("fast", 1), ("slow", 2), ("idle", 0))
    )
    comparison = of(fast, slow, idle)
    assert comparison.verdict("slow") == "slower"
    judged = comparison.judge("idle")
    assert (judged.verdict, judged.reason) == ("uncertain", "no-gpu-work")
    assert "'idle' issues no work to the GPU" in judged.sentence
    _, _, _, slow_row, idle_row = str(comparison).partition("\n\n")[0].splitlines()
    assert slow_row.split()[-1] == "slower"
    assert idle_row.split() == ["idle", "no", "GPU", "work"]
    assert "idle against" not in comparison.details()
    from_idle = of(idle, fast)
    assert from_idle.exit_code() == 0
    assert "idle no GPU work (the baseline), fast 1.000 µs" in repr(from_idle)


def test_everything_is_written_and_read_again() -> None:
    base, other = measured("base", [1.0] * 6), measured("other", spread(1.2, 0.01))
    comparison = Comparison(
        {"other": other, "base": base, "control": base},
        baseline="base",
        control="control",
        same_results={"other": Agreement(False, "off by 3", 3.0)},
        interference={"other": Interference(1.5, 0.8, "takes <more> beside the others")},
        interference_reason="there was no time",
        confirmation={"other": Ratio(1.2, 1.19, 1.21)},
    )
    document = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert (document["type"], document["schema"]) == ("Comparison", codec.SCHEMA)
    assert Comparison.from_dict(document) == comparison
    judged = document["judgements"]
    assert (judged["other"]["verdict"], judged["control"]["verdict"]) == ("slower", "same")
    text, html = flat(comparison), comparison._repr_html_()
    for said in (
        "other: OTHER RESULT: off by 3",
        "interference not checked: there was no time",
        "other: interference: takes <more> beside the others",
    ):
        assert said in text
        assert said.replace("<more>", "&lt;more&gt;") in html
    assert list(comparison.to_frame()["name"].unique()) == ["other", "base", "control"]
    assert [row.sub_label for row in comparison.to_torch()] == ["other", "base", "control"]
    older = {"schema": "6.0", "measurements": document["measurements"], "margin": 0.01}
    assert Comparison.from_dict(older).baseline == "other"


def test_only_what_was_measured_together_is_compared() -> None:
    one, longer = measured("a", [1.0] * 10), measured("b", [1.0] * 11)
    with pytest.raises(ValueError, match=r"number of samples, got {'a': 10, 'b': 11}"):
        of(one, longer)
    with pytest.raises(ValueError, match="at least one measurement, got none"):
        of()
    with pytest.raises(ValueError, match=r"length >= 1 - at `\$.measurements`"):
        Comparison.from_dict(codec.document("Comparison", {"measurements": {}}))
    with pytest.raises(ValueError, match=r"baseline must be one of \['a'\], got 'b'"):
        of(one, baseline="b")
    with pytest.raises(KeyError, match="must be one of .*, got 'b'"):
        of(one).ratio("b")


@pytest.mark.timing
@pytest.mark.cuda
def test_a_candidate_without_gpu_work_costs_the_others_nothing() -> None:
    x = torch.randn(64, 64, 56, 56, device="cuda")
    result = convtime.compare({"relu": lambda: torch.relu(x), "nothing": lambda: None})
    relu, nothing = result.measurements.values()
    alone = convtime.time_op(lambda: torch.relu(x))
    assert (relu.method, relu.no_gpu_work) == ("kernel", False)
    assert relu.median == pytest.approx(alone.median, rel=0.05)
    assert nothing.no_gpu_work
    assert set(nothing.seconds) == {0.0}
    assert "nothing no GPU work not known" in flat(result)  # without a ratio and a verdict


@pytest.mark.timing
@pytest.mark.cuda
def test_the_same_kernel_with_rotating_tensors_compares_as_equal() -> None:
    x = torch.randn(1 << 24, device="cuda")
    result = convtime.compare(
        [convtime.Candidate(torch.relu, x), convtime.Candidate(torch.relu, x)],
        cache="rotate",
        control=True,
    )
    assert {each.cache for each in result.measurements.values()} == {"rotate"}
    assert list(result.measurements) == ["relu", "relu 2", "control"]
    assert result.same_results["relu 2"].same is True
    assert result.ratio("relu 2").value == pytest.approx(1, abs=0.02)
    judged = result.judge("relu 2")
    assert (judged.verdict, judged.reason) in (("same", None), ("uncertain", "control-differs"))
    assert judged.in_cycles is not None


AS_ASKED: dict[str, Any] = {"discarded": (), "method_requested": "cpu", "stop_reason": "settled"}


def test_a_table_has_a_row_for_each_and_a_sentence_for_each_verdict() -> None:
    times = (("b", 2e-6), ("a", 1e-6), ("c", 1.05e-6))
    every = (changed(measured(name, (each,) * 30), **AS_ASKED) for name, each in times)
    results = {"b": Agreement(True, "equal"), "c": Agreement(False, "off by 3")}
    found = of(*every, baseline="a", same_results=results)
    assert str(found).splitlines() == [
        "   time [95 %]                         ratio [95 %]  verdict       result",
        "─" * 73,
        "a  1.000 µs [1.000, 1.000]                           the baseline",
        "b  2.000 µs [2.000, 2.000]  2.0000 [2.0000, 2.0000]  slower        same",
        "c  1.050 µs [1.050, 1.050]  1.0500 [1.0500, 1.0500]  slower        OTHER",
        "",
        "b is slower than a: it takes 2.000 times as long (2.000 to 2.000)",
        "c is slower than a: it takes 5.00% more time (5.00% to 5.00%)",
        "c: OTHER RESULT: off by 3",
    ]
    assert repr(found) == (
        "<convtime.Comparison a 1.000 µs (the baseline), b 2.000 µs (slower), c 1.050 µs (slower)>"
    )
    assert "b: same result: equal" in flat(found)


@settings(max_examples=50)
@given(st.floats(0.1, 4), st.sampled_from([0.0, 0.001, 0.01]))
def test_verdicts_are_said_in_words(near: float, spread: float) -> None:
    seconds = tuple(near + spread * step / 30 for step in range(30))
    pair = (measured("a", (1.0,) * 30), measured("b", seconds))
    found = of(*(changed(each, **AS_ASKED) for each in pair))
    words, ratio = str(found).splitlines()[-1], found.ratio("b")
    low, value, high = ratio.low, statistics.median(seconds), ratio.high
    if high < 0.99:
        said, numbers = "is faster .*% less time", [100 * (1 - each) for each in (value, high, low)]
    elif low > 1.01 and value < 2:
        said, numbers = "is slower .*% more time", [100 * (each - 1) for each in (value, low, high)]
    elif low > 1.01:
        said, numbers = "is slower .*times as long", [value, low, high]
    elif 0.99 <= low <= high <= 1.01:
        said, numbers = "takes as long as a", [1.0]
    else:
        said, numbers = "against a is uncertain", []
    assert re.match(f"b {said}", words)
    if numbers:
        assert [float(each) for each in re.findall(r"[0-9.]+", words)] == pytest.approx(
            numbers, abs=0.0051
        )


def test_what_all_have_in_common_is_said_once() -> None:
    layer = layers()["float32 nchw layer1.0.conv2"]
    found = Comparison({"pytorch": layer.pytorch, "convtime": layer.convtime})
    alike, _, different = found.details().partition("alike in all:")[2].partition("\n\n")
    assert "method:      kernel (asked for auto" in alike
    assert alike.count("NVIDIA H200") == 1
    assert "method" not in different
    assert different.splitlines()[0].split() == ["pytorch", "convtime"]
    assert "median         138.1 µs   " in different
    for kernel in ("73.20 µs sm90_xmma_fprop", "73.02 µs sm90_xmma_fprop"):
        assert kernel in different
    alone = Comparison({"only": layer.pytorch})
    assert str(alone).splitlines()[-1].endswith("the baseline")


UNIT = 1 / 64  # sums of whole numbers of it are exact
INTERVALS = st.tuples(st.integers(-12, 12), st.integers(-12, 12)).map(sorted)


@given(INTERVALS, st.integers(1, 5), st.integers(0, 4))
def test_verdicts_follow_the_interval(ends: list[int], margin: int, doubt: int) -> None:
    low, high = ends
    expected: set[Verdict] = set()
    if all(abs(end) <= margin for end in ends):
        expected.add("same")
    if all(end < -margin - doubt for end in ends):
        expected.add("faster")
    if all(end > margin + doubt for end in ends):
        expected.add("slower")
    ratio = Ratio(1.0, 1 + low * UNIT, 1 + high * UNIT)
    assert {ratio.verdict(margin * UNIT, doubt * UNIT)} == (expected or {"uncertain"})


@given(st.floats(0.1, 10), st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0.001, 0.2))
def test_the_smallest_difference_is_the_margin_and_half_the_relative_width(
    value: float, below: float, above: float, margin: float
) -> None:
    ends = value * np.array([1 - below, 1 + above])
    found = Ratio(value, *map(float, ends)).smallest_difference(margin)
    assert found == pytest.approx(margin + np.mean([below, above]))
    for without in (Ratio(1, -math.inf, math.inf), Ratio(0, 0, 0), Ratio(math.inf, 1, 2)):
        assert without.smallest_difference(margin) == math.inf


@given(INTERVALS, st.integers(1, 5), st.booleans())
def test_a_wide_interval_is_told_from_one_at_the_margin(
    ends: list[int], margin: int, disturbed: bool
) -> None:
    low, high = (1 + end * UNIT for end in ends)
    pair = make(), make(name="x", disturbance="waited for a core" if disturbed else "")
    reason, why = why_uncertain(low, high, margin * UNIT, *pair)
    if ends[1] - ends[0] <= 2 * margin:
        assert reason == "at-the-margin"
        assert f"{low:.4f} .. {high:.4f}" in why
    else:
        assert reason == ("disturbed" if disturbed else "wide-interval")
        assert f"± {50 * UNIT * (ends[1] - ends[0]):.2f}%" in why
        assert ("'x' waited for a core" in why) == disturbed


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"other_launches": 7}, "other threads launched 7"),
        ({"exclusive_requested": True, "exclusive_reason": "it was locked"}, "it was locked"),
        ({"exclusive_requested": True, "device": "cpu"}, None),
        ({"exclusive": True, "exclusive_requested": True}, None),
        ({"exclusive_reason": "it was locked"}, None),
    ],
)
def test_disturbances_of_either_measurement_count(fields: dict[str, Any], said: str | None) -> None:
    for pair in ((make(**fields), make()), (make(), make(**fields))):
        reason, why = why_uncertain(0.5, 1.5, 0.01, *pair)
        assert reason == ("wide-interval" if said is None else "disturbed")
        assert said is None or said in why


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["same", *FINDS]))),
    st.sets(st.sampled_from(FINDS)),
    st.sampled_from([0, 3]),
)
def test_an_exit_code_has_its_causes(
    found: list[tuple[str, str]], fail_on: Collection[str], uncertain: int
) -> None:
    failures = [each for each in found if fail_on & {each[1]}]  # type: ignore[operator]
    unclear = [each for each in found if each[1] == "uncertain" and uncertain]
    code = 1 if failures else uncertain if unclear else 0
    assert exit_code_of(found, fail_on, uncertain) == (code, failures or unclear)


def test_failures_are_one_or_several_of_what_a_gate_finds() -> None:
    assert set(FINDS) < set(get_args(Failure))
    assert check_failures("slower", FINDS) == {"slower"}
    assert check_failures(["slower", "different"], FINDS) == {"slower", "different"}
    with pytest.raises(ValueError, match=r"fail_on must be some of \('slower', .* got 'missing'"):
        check_failures("missing", FINDS)


def test_only_certain_verdicts_contradict_each_other() -> None:
    ratio = Ratio(1.25, 1.2, 1.3)
    for one, other in itertools.product(get_args(Verdict), repeat=2):
        said = contradiction(one, "busy", other, other_metric("busy"), ratio)
        expected = f"{one} in busy time, but {other} in span (1.2500 [1.2000, 1.3000])"
        assert said == ("" if one == other or "uncertain" in (one, other) else expected)
    assert (other_metric("span"), other_metric("sum")) == ("busy", "busy")
