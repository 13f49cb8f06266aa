"""Comparisons of measurements: ratios, judgements with their reasons, and exit codes."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import convtime
from convtime.core import codec
from convtime.core.load import _C
from convtime.timing.activity import DeviceActivity
from convtime.timing.comparison import Agreement, Comparison, Interference
from convtime.timing.measurement import Measurement
from convtime.timing.verdict import Ratio
from tests.helpers.measurements import changed, on_cpu
from tests.helpers.texts import flat

KERNEL = DeviceActivity("kernel", "relu", (1, 1, 1), (1, 1, 1), 16, 0, 0, (1e-6,))
Ends = tuple[float, float]


def measured(
    name: str, seconds: Sequence[float], clocks_mhz: Sequence[float | None] = (), **fields: Any
) -> Measurement:
    clocks_hz = tuple(None if mhz is None else 1e6 * mhz for mhz in clocks_mhz)
    one = on_cpu(tuple(seconds), name=name, stop_reason="budget")
    return changed(one, sm_clocks_hz=clocks_hz, **fields)


def compared(**seconds: Sequence[float]) -> Comparison:
    return Comparison({name: measured(name, each) for name, each in seconds.items()})


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
    pair = {
        "under": measured("under", under.tolist(), overhead_uncertainty=uncertainty / 2),
        "over": measured("over", over.tolist(), overhead_uncertainty=uncertainty),
    }
    comparison = Comparison(pair)
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
    pair = {
        name: measured(name, row, [mhz if is_known else None for mhz, is_known in each])
        for name, row, each in zip(
            ("under", "over"), seconds, np.dstack([clocks, known]).tolist(), strict=True
        )
    }
    found = Comparison(pair).cycles_ratio("over")
    under, over = (seconds * clocks)[:, known.all(0)]
    assert found is not None
    assert found.value == pytest.approx(np.median(over / under))
    assert (found.low, found.high) == pytest.approx(sign_test(over / under))


def test_ratios_count_a_place_once_and_know_the_clocks_tick() -> None:
    places = (*range(8),) * 8
    steps = (1.98e-6, 1.99e-6, 2e-6, 2.01e-6, 2.02e-6, 2.03e-6, 2.04e-6, 2.05e-6)
    base = measured("base", (2e-6,) * 64, places=places)
    other = measured("other", steps * 8, places=places)
    ratio = Comparison({"base": base, "other": other}).ratio("other")
    assert (ratio.low, ratio.high) == pytest.approx((0.99, 1.025))  # all of eight places
    assert compared(base=base.seconds, other=other.seconds).ratio("other").low > ratio.low
    equal = dataclasses.replace(base, places=(), clock_tick=32e-9)
    by_tick = Comparison({"base": equal, "other": equal}).ratio("other")
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
    comparison = Comparison(
        {
            name: measured(name, spread(*each), [1000] * 6, between_runs=0.01 * on_a_cpu)
            for name, each in spreads.items()
        },
        margin,
        control="control" if control else "",
        confirmation={} if of_fresh is None else {"other": Ratio(1.0, *of_fresh)},
    )
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
        pair = {
            "base": measured("base", [1.0] * 6, between_runs=base),
            "other": measured("other", [1.02] * 6, between_runs=other),
        }
        assert Comparison(pair).judge("other").reason is None


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
    comparison = Comparison({"base": base, "x": measured("x", seconds, **fields)})
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
        of_busy, of_span = ([1e-4 * each] * 30 for each in (busy, 1.1 * span))
        return measured(
            name,
            of_busy,
            method="kernel",
            metric="busy",
            device="cuda:0",
            busy_seconds=tuple(of_busy),
            span_seconds=tuple(of_span),
            sum_seconds=tuple(of_busy),
        )

    comparison = Comparison({"a": by_kernels("a", 1, 1), "b": by_kernels("b", busy, span)})
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
    comparison = Comparison({"base": base, "other": measured("other", seconds, clocks_mhz)})
    judged = comparison.judge("other")
    assert (judged.verdict, judged.in_cycles) == (verdict, in_cycles)
    told = f"{verdict} in time, {in_cycles} in cycles: {sentence}" if sentence else ""
    assert judged.sentence.startswith(told)
    assert bool(judged.sentence) is bool(sentence)
    assert judged.sentence in flat(comparison)
    assert judged.sentence in comparison._repr_html_()


def test_a_candidate_without_gpu_work_leaves_the_others_their_verdicts() -> None:
    fast, slow, idle = (
        measured("relu", [1e-6 * time] * 30, method="kernel", activities=activities)
        for time, activities in ((1.0, (KERNEL,)), (2.0, (KERNEL,)), (0.0, ()))
    )
    comparison = Comparison({"fast": fast, "slow": slow, "idle": idle})
    assert comparison.verdict("slow") == "slower"
    judged = comparison.judge("idle")
    assert (judged.verdict, judged.reason) == ("uncertain", "no-gpu-work")
    assert "'relu' issues no work to the GPU" in judged.sentence
    _, _, _, slow_row, idle_row = str(comparison).partition("\n\n")[0].splitlines()
    assert slow_row.split()[-1] == "slower"
    assert idle_row.split() == ["idle", "no", "GPU", "work"]
    assert "idle against" not in comparison.details()
    from_idle = Comparison({"idle": idle, "fast": fast})
    assert from_idle.exit_code() == 0
    assert "idle no GPU work (the baseline), fast 1.000 µs" in repr(from_idle)


def test_the_baseline_can_be_any_of_them() -> None:
    two, one, same = (measured(name, [time] * 30) for name, time in (("b", 2), ("a", 1), ("c", 1)))
    comparison = Comparison({"b": two, "a": one, "c": same}, baseline="a")
    assert comparison.others == ("b", "c")
    assert (comparison.verdict("b"), comparison.verdict("c")) == ("slower", "same")
    assert comparison.verdict("a", "b") == "faster"
    assert re.match(r"a +1\.000 s \[.*\] +the baseline$", str(comparison).splitlines()[2])
    assert Comparison({"b": two, "a": one}).baseline == "b"
    unknown = changed(one, method="oracle")
    assert "judged on the time that 'oracle' gives" in flat(Comparison({"a": unknown}))


def test_findings_are_what_can_fail() -> None:
    comparison = dataclasses.replace(
        compared(base=[1.0] * 6, fast=[0.5] * 6, unclear=spread(1.0, 0.05)),
        same_results={"fast": Agreement(False, "off"), "unclear": Agreement(None, "unknown")},
    )
    assert comparison.findings == (
        ("fast", "faster"),
        ("fast", "different"),
        ("unclear", "uncertain"),
    )
    assert (comparison.exit_code(), comparison.exit_code("different")) == (0, 1)
    with pytest.raises(ValueError, match=r"fail_on must be some of \('slower', .* got 'slow'"):
        comparison.exit_code("slow")  # type: ignore[arg-type]


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
    for said in ("other: OTHER RESULT: off by 3", "interference not checked: there was no time"):
        assert said in text
        assert said in html
    assert "other: interference: takes <more> beside the others" in text
    assert "other: interference: takes &lt;more&gt; beside the others" in html
    assert list(comparison.to_frame()["name"].unique()) == ["other", "base", "control"]
    assert [row.sub_label for row in comparison.to_torch()] == ["other", "base", "control"]
    older = {"schema": "6.0", "measurements": document["measurements"], "margin": 0.01}
    assert Comparison.from_dict(older).baseline == "other"


def test_only_what_was_measured_together_is_compared() -> None:
    one, longer = measured("a", [1.0] * 10), measured("b", [1.0] * 11)
    with pytest.raises(ValueError, match=r"number of samples, got {'a': 10, 'b': 11}"):
        Comparison({"a": one, "b": longer})
    with pytest.raises(ValueError, match="at least one measurement, got none"):
        Comparison({})
    document = codec.document("Comparison", {"measurements": {}})
    with pytest.raises(ValueError, match=r"length >= 1 - at `\$.measurements`"):
        Comparison.from_dict(document)
    with pytest.raises(ValueError, match=r"baseline must be one of \['a'\], got 'b'"):
        Comparison({"a": one}, baseline="b")
    with pytest.raises(KeyError, match="must be one of .*, got 'b'"):
        Comparison({"a": one}).ratio("b")


NOTHING: Any = {"a": lambda: None, "b": lambda: None}


@pytest.mark.parametrize(
    ("candidates", "options", "error", "message"),
    [
        (NOTHING, {"margin": 0}, ValueError, "margin must be more than 0, got 0"),
        (NOTHING, {"margin": "wide"}, ValueError, "margin must be a number, got 'wide'"),
        (NOTHING, {"stop": "soon"}, ValueError, "stop must be one of 'interval', .* got 'soon'"),
        (NOTHING, {"speed": 1}, TypeError, "compare has no option 'speed'; there are method, "),
        (NOTHING, {"baseline": "c"}, ValueError, r"baseline must be .*\['a', 'b'\], got 'c'"),
        (NOTHING, {"control": "yes"}, ValueError, "control must be True or False, got 'yes'"),
        (NOTHING, {"interference": 1}, ValueError, "interference must be True or False, got 1"),
        (NOTHING, {"confirm": 1}, ValueError, "confirm must be True or False, got 1"),
        (NOTHING, {"check": "loosely"}, ValueError, "check must be 'close', .* got 'loosely'"),
        (NOTHING, {"check": torch.ones(2)}, ValueError, "check must be 'close', .* got tensor"),
        ([], {}, ValueError, "at least one candidate"),
        ({"a": int, "": int}, {}, ValueError, "each candidate must have a name"),
        (torch.relu, {}, TypeError, "takes callables or Candidates, in a mapping"),
        ("relu", {}, TypeError, "takes callables or Candidates, in a mapping"),
        ({"a": 1}, {}, TypeError, "must be callable, got int for 'a'"),
    ],
)
def test_bad_arguments_are_refused(
    candidates: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        convtime.compare(candidates, device="cpu", **options)


@pytest.mark.timing
def test_sampling_goes_on_until_the_verdict_is_settled() -> None:
    candidates = {name: functools.partial(time.sleep, s) for name, s in (("a", 1e-3), ("b", 2e-3))}
    result = convtime.compare(candidates, device="cpu", warmup=1, budget=20)
    assert result.verdict("b") == "slower"
    assert result.ratio("b").value == pytest.approx(2, rel=0.15)
    assert result.ratio("a", "b").value == pytest.approx(0.5, rel=0.15)
    assert result.measurements["b"].stop_reason == "settled"
    assert result.measurements["b"].sampling_seconds < 15


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
    # All of its row: it has no ratio and no verdict.
    rows = [line.split() for line in result.details().splitlines()]
    assert ["nothing", "no", "GPU", "work", "not", "known"] in rows


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
