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

import convtime
from convtime.core import codec
from convtime.timing.activity import DeviceActivity
from convtime.timing.comparison import Agreement, Comparison, Interference
from tests.helpers.measurements import changed
from tests.helpers.texts import flat

KERNEL = DeviceActivity("kernel", "relu", (1, 1, 1), (1, 1, 1), 16, 0, 0, (1e-6,))


def timed(name: str) -> convtime.Measurement:
    """To be given other samples, as of a GPU and a clock without a tick."""
    one = convtime.time_op(time.sleep, 0, device="cpu", max_samples=10, name=name)
    return dataclasses.replace(one, clock_tick=0.0, host=(), disturbance="", between_runs=0.0)


@pytest.mark.timing
def test_compares_calls_of_known_duration() -> None:
    result = convtime.compare(
        {"fast": lambda: time.sleep(0.002), "slow": lambda: time.sleep(0.004)},
        device="cpu",
        max_samples=20,
        stop="count",
    )
    assert list(result.measurements) == ["fast", "slow"]
    assert len(result.measurements["fast"].seconds) == len(result.measurements["slow"].seconds)
    ratio = result.ratio("slow")
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(2, rel=0.15)
    assert result.ratio("fast", "slow").value == pytest.approx(0.5, rel=0.15)
    assert result.ratio("fast").value == pytest.approx(1, abs=1e-4)  # to the clock's tick
    assert "slow" in flat(result)


def test_ratios_pair_the_samples_of_a_round() -> None:
    """A drift that both share must not show: here the machine gets four times slower."""
    one = timed("base")
    drift = [1.0 + 3 * step / 40 for step in range(41)]
    base = convtime.Measurement.from_dict({**one.to_dict(), "seconds": drift, "batches": []})
    slower = convtime.Measurement.from_dict(
        {**one.to_dict(), "seconds": [1.01 * sample for sample in drift], "batches": []}
    )
    ratio = Comparison({"base": base, "slower": slower}).ratio("slower")
    assert ratio.value == pytest.approx(1.01)
    assert ratio.high - ratio.low < 1e-9


@pytest.mark.parametrize(
    ("ratios", "verdict", "exit_code"),
    [
        ([0.995 + 0.001 * step for step in range(11)], "same", 0),
        ([1.001 + 0.0001 * step for step in range(11)], "same", 0),
        ([0.94 + 0.001 * step for step in range(11)], "faster", 0),
        ([1.05 + 0.001 * step for step in range(11)], "slower", 1),
        ([0.95 + 0.01 * step for step in range(11)], "uncertain", 0),
        # more than the same, or not
        ([1.005 + 0.001 * step for step in range(11)], "uncertain", 0),
    ],
)
def test_verdicts_follow_the_interval(ratios: list[float], verdict: str, exit_code: int) -> None:
    alone = {**timed("one").to_dict(), "batches": []}
    base = convtime.Measurement.from_dict({**alone, "seconds": [1.0] * len(ratios)})
    other = convtime.Measurement.from_dict({**alone, "seconds": ratios})
    comparison = Comparison({"base": base, "other": other}, margin=0.01)
    assert comparison.verdict("other") == verdict
    assert comparison.exit_code() == exit_code
    assert f" {verdict}" in str(comparison).splitlines()[3]
    assert Comparison(comparison.measurements, margin=0.2).verdict("other") == "same"


def events_of(name: str, microseconds: float, uncertainty: float) -> convtime.Measurement:
    return dataclasses.replace(
        timed(name),
        seconds=(microseconds * 1e-6,) * 30,
        batches=(),
        overhead_uncertainty=uncertainty * 1e-6,
    )


@pytest.mark.parametrize(
    ("uncertainty", "verdict"), [(0.0, "slower"), (0.1, "slower"), (1.5, "uncertain")]
)
def test_verdicts_know_how_well_the_methods_own_cost_is_known(
    uncertainty: float, verdict: str
) -> None:
    """Of 2.00 and 2.03 µs, 1.5 µs more on both are a ratio of 1.0086: within the margin."""
    base, other = (events_of("relu", time, uncertainty) for time in (2.0, 2.03))
    comparison = Comparison({"base": base, "other": other})
    assert comparison.verdict("other") == verdict
    ratio = comparison.ratio("other")
    assert ratio.value == pytest.approx(1.015)
    assert ratio.low == pytest.approx((2.03 + uncertainty) / (2.0 + uncertainty))
    assert ratio.high == pytest.approx((2.03 - uncertainty) / (2.0 - uncertainty))


def by_kernels(name: str, busy: float, span: float) -> convtime.Measurement:
    """Thirty samples by activity records, in microseconds."""
    noise = 1e-6 * (1 + 0.001 * np.random.default_rng(len(name)).standard_normal(30))
    return changed(
        events_of(name, busy, 0.0),
        seconds=tuple(busy * noise),
        busy_seconds=tuple(busy * noise),
        span_seconds=tuple(span * noise),
        sum_seconds=tuple(2 * busy * noise),
        method="kernel",
        metric="busy",
    )


@pytest.mark.parametrize(
    ("busy", "span", "verdict", "other"),
    [
        (1.0, 1.0, "same", None),
        (1.0, 1.3, "same", "slower"),
        (0.7, 1.3, "faster", "slower"),
        (0.7, 0.8, "faster", None),
        (1.2, 1.0, "slower", "same"),
    ],
)
def test_what_span_says_otherwise_is_told(
    busy: float, span: float, verdict: str, other: str | None
) -> None:
    pair = by_kernels("base", 100, 110), by_kernels("other", 100 * busy, 110 * span)
    compared = Comparison({each.name: each for each in pair})
    judged = compared.judge("other")
    assert judged.verdict == verdict
    assert compared.judged_on.startswith("busy time")
    assert compared.exit_code("contradictory") == (0 if other is None else 1)
    told = f"{verdict} in busy time, but {other} in span"
    assert (told in judged.contradiction) == (other is not None)
    assert (told in str(compared)) == (other is not None)


def test_few_rounds_have_no_verdict() -> None:
    base, other = (
        dataclasses.replace(events_of("relu", time, 0.0), seconds=(time,) * 5) for time in (1, 2)
    )
    comparison = Comparison({"base": base, "other": other})
    assert comparison.ratio("other").value == 2
    assert comparison.verdict("other") == "uncertain"


def test_ratios_count_a_place_once_and_know_the_clocks_tick() -> None:
    base, other = (
        dataclasses.replace(events_of(name, 2.0, 0.0), seconds=seconds * 8, places=(*range(8),) * 8)
        for name, seconds in (
            ("base", (2e-6,) * 8),
            ("other", (1.98e-6, 1.99e-6, 2e-6, 2.01e-6, 2.02e-6, 2.03e-6, 2.04e-6, 2.05e-6)),
        )
    )
    ratio = Comparison({"base": base, "other": other}).ratio("other")
    assert (ratio.low, ratio.high) == pytest.approx((0.99, 1.025))  # of eight places, all
    pairless = [dataclasses.replace(one, places=()) for one in (base, other)]
    narrower = Comparison(dict(zip(("base", "other"), pairless, strict=True))).ratio("other")
    assert narrower.low > ratio.low
    equal = dataclasses.replace(base, places=(), clock_tick=32e-9)
    by_tick = Comparison({"base": equal, "other": equal}).ratio("other")
    unseen = (1 - 0.025 ** (1 / 64)) * 32e-9
    assert by_tick.high == pytest.approx(1 + 2**0.5 * unseen / 2e-6, rel=1e-4)


def test_a_candidate_without_gpu_work_leaves_the_others_their_verdicts() -> None:
    fast, slow, idle = (
        changed(events_of("relu", time, 0.0), method="kernel", activities=activities)
        for time, activities in ((1.0, (KERNEL,)), (2.0, (KERNEL,)), (0.0, ()))
    )
    comparison = Comparison({"fast": fast, "slow": slow, "idle": idle})
    assert comparison.verdict("slow") == "slower"
    assert comparison.verdict("idle") == "uncertain"
    _, _, _, slow_row, idle_row = str(comparison).partition("\n\n")[0].splitlines()
    assert slow_row.split()[-1] == "slower"
    assert idle_row.split() == ["idle", "no", "GPU", "work"]
    assert "idle against" not in comparison.details()
    from_idle = Comparison({"idle": idle, "fast": fast})
    assert from_idle.exit_code() == 0
    assert repr(from_idle) == (
        "<convtime.Comparison idle no GPU work (the baseline), fast 1.000 µs>"
    )


@functools.cache
def one_of_ten() -> convtime.Measurement:
    return timed("one")


def measured(
    name: str, seconds: Sequence[float], clocks_mhz: Sequence[float | None] = (), **fields: Any
) -> convtime.Measurement:
    clocks_hz = tuple(None if mhz is None else 1e6 * mhz for mhz in clocks_mhz)
    return changed(
        one_of_ten(),
        name=name,
        seconds=tuple(seconds),
        batches=(),
        sm_clocks_hz=clocks_hz,
        **fields,
    )


def test_the_baseline_can_be_any_of_them() -> None:
    two, one, same = (measured(name, [time] * 30) for name, time in (("b", 2), ("a", 1), ("c", 1)))
    comparison = Comparison({"b": two, "a": one, "c": same}, baseline="a")
    assert comparison.others == ("b", "c")
    assert (comparison.verdict("b"), comparison.verdict("c")) == ("slower", "same")
    assert comparison.verdict("a") == "same"
    assert comparison.verdict("a", "b") == "faster"
    assert re.match(r"a +1\.000 s \[.*\] +the baseline$", str(comparison).splitlines()[2])
    assert Comparison({"b": two, "a": one}).baseline == "b"
    with pytest.raises(ValueError, match=r"baseline must be one of \['b'\], got 'a'"):
        Comparison({"b": two}, baseline="a")


@pytest.mark.parametrize(
    ("times", "clocks_mhz", "verdict", "in_cycles", "sentence"),
    [
        (
            (1.0, 1.2),
            (1980, 1650),
            "slower",
            "same",
            "slower in time, same in cycles: clock (1650 ",
        ),
        ((1.0, 1.0), (1980, 1650), "same", "faster", "same in time, faster in cycles: clock (1650"),
        ((1.0, 1.2), (1980, 1980), "slower", "slower", ""),
        ((1.0, 1.2), (None, 1980), "slower", None, ""),
    ],
)
def test_verdicts_on_time_and_on_cycles(
    times: tuple[float, float],
    clocks_mhz: tuple[float | None, float],
    verdict: str,
    in_cycles: str | None,
    sentence: str,
) -> None:
    base, other = (
        measured("x", [time] * 30, [clock] * 30)
        for time, clock in zip(times, clocks_mhz, strict=True)
    )
    comparison = Comparison({"base": base, "other": other})
    judged = comparison.judge("other")
    assert (judged.verdict, judged.in_cycles, judged.reason) == (verdict, in_cycles, None)
    assert judged.sentence.startswith(sentence)
    assert bool(judged.sentence) is bool(sentence)
    assert judged.sentence in flat(comparison)
    assert judged.sentence in comparison._repr_html_()


def test_a_clock_that_wanders_is_told_from_an_operation_that_varies() -> None:
    clocks_mhz = [1980, 1800, 1600, 1980, 1700, 1900]
    base = measured("base", [1.0] * 6, [1980] * 6)
    other = measured("other", [1980 / clock for clock in clocks_mhz], clocks_mhz)
    judged = Comparison({"base": base, "other": other}).judge("other")
    assert (judged.verdict, judged.in_cycles, judged.reason) == (
        "uncertain",
        "same",
        "wide-interval",
    )
    assert judged.sentence.startswith(
        "uncertain in time, same in cycles: clock (1850 MHz against 1980); the interval, "
    )


def test_a_control_that_differs_spoils_verdicts_in_cycles_too() -> None:
    base, slow, control = (
        measured(name, [time] * 30, [1000] * 30)
        for name, time in (("base", 1.0), ("slow", 2.0), ("control", 1.1))
    )
    comparison = Comparison({"base": base, "slow": slow, "control": control}, control="control")
    assert comparison.judge("slow").in_cycles == "uncertain"
    assert comparison.judge("control").in_cycles == "slower"


def test_a_ratio_in_cycles_is_of_the_rounds_whose_clocks_are_known() -> None:
    base = measured("base", [1.0] * 8, [1000] * 7 + [None])
    other = measured("other", [2.0] * 8, [None] + [1500] * 7)
    comparison = Comparison({"base": base, "other": other})
    found = comparison.cycles_ratio("other")
    assert found == convtime.Ratio(3, 3, 3)
    assert Comparison({"base": base, "other": measured("other", [1.0] * 8)}).cycles_ratio(
        "other"
    ) is None  # fmt: skip


def spread(middle: float, half: float) -> list[float]:
    """Of whose median, 1 ± half is the whole interval: six samples have no narrower one."""
    return [middle - half, middle - half / 2, middle, middle, middle + half / 2, middle + half]


@pytest.mark.parametrize(
    ("seconds", "fields", "reason", "said"),
    [
        ([1.0] * 5, {}, "too-few-samples", "5 rounds are too few for an interval"),
        (spread(1.0, 0.05), {}, "wide-interval", r"± 5\.00%, is wider than the margin: sampling"),
        (spread(1.01, 0.005), {}, "at-the-margin", r"the margin's edge lies within 1\.0050 \.\. "),
        (
            spread(1.0, 0.05),
            {"other_launches": 7},
            "disturbed",
            r"other threads launched 7 .*; the interval, ",
        ),
        (
            spread(1.0, 0.05),
            {"device": "cuda:0", "exclusive_requested": True, "exclusive_reason": "it was locked"},
            "disturbed",
            "it was locked; the interval, ",
        ),
        (spread(1.012, 0.001), {"overhead_uncertainty": 0.5}, "method-cost", "it would be slower"),
        ([0.0] * 30, {"method": "kernel"}, "no-gpu-work", "'x' issues no work to the GPU"),
    ],
)
def test_uncertain_verdicts_say_why(
    seconds: list[float], fields: dict[str, Any], reason: str | None, said: str
) -> None:
    base = measured("base", [1.0] * len(seconds), **fields | {"exclusive_reason": ""})
    comparison = Comparison({"base": base, "x": measured("x", seconds, **fields)})
    judged = comparison.judge("x")
    assert judged.reason == reason
    assert (judged.verdict == "uncertain") is (reason is not None)
    assert re.search(said, judged.sentence), judged.sentence
    if reason not in (None, "no-gpu-work"):
        assert f"x against base is uncertain ({reason}): {judged.sentence}" in str(comparison)


def test_the_smallest_difference_is_the_margin_and_half_the_interval() -> None:
    base = measured("base", [1.0] * 6)
    half, margin = 0.003, 0.01
    comparison = Comparison({"base": base, "same": measured("same", spread(1.0, half))}, margin)
    found = comparison.judge("same").smallest_difference
    assert found == pytest.approx(half + margin)
    assert "smallest detectable difference 1.30%" in flat(comparison)
    # So it is: with that interval, what differs by a little more is found, and by less is not.
    for share, verdict in ((1.001, "slower"), (0.999, "uncertain")):
        other = measured("other", spread(1 + share * found, half))
        assert Comparison({"base": base, "other": other}, margin).verdict("other") == verdict
    few = Comparison({"base": measured("base", [1.0] * 5), "few": measured("few", [1.0] * 5)})
    assert few.judge("few").smallest_difference == math.inf
    assert few.to_dict()["judgements"]["few"]["smallest_difference"] is None


@pytest.mark.parametrize(
    ("control", "verdicts"),
    [
        (1.0, ("slower", "same")),
        (1.03, ("uncertain", "uncertain")),
        (0.97, ("uncertain", "uncertain")),
    ],
)
def test_a_control_that_differs_spoils_every_verdict(
    control: float, verdicts: tuple[str, str]
) -> None:
    times = {"base": 1.0, "slow": 1.2, "same": 1.0, "control": control}
    comparison = Comparison(
        {name: measured(name, [time] * 30) for name, time in times.items()}, control="control"
    )
    assert comparison.others == ("slow", "same")
    assert (comparison.verdict("slow"), comparison.verdict("same")) == verdicts
    spoilt = verdicts[0] == "uncertain"
    assert comparison.verdict("slow", "same") == ("uncertain" if spoilt else "slower")
    assert comparison.exit_code() == int(not spoilt)
    assert comparison.exit_code(uncertain=3) == (3 if spoilt else 1)
    found = {1.0: "same", 1.03: "slower", 0.97: "faster"}[control]
    assert comparison.verdict("control") == found
    assert f" {found}, control" in flat(comparison)
    assert (
        f"'control' does the same as the baseline, and was found {found}" in flat(comparison)
    ) is (spoilt)


@pytest.mark.parametrize(
    ("fail_on", "uncertain", "code"),
    [
        ("slower", 0, 0),
        ("slower", 75, 75),
        (("slower", "faster"), 75, 1),
        ("uncertain", 75, 1),
        ("different", 0, 1),
        ((), 0, 0),
    ],
)
def test_an_exit_code_can_be_told_what_fails(fail_on: Any, uncertain: int, code: int) -> None:
    times = {"base": [1.0] * 6, "fast": [0.5] * 6, "unclear": spread(1.0, 0.05)}
    comparison = Comparison(
        {name: measured(name, seconds) for name, seconds in times.items()},
        same_results={"fast": Agreement(False, "off"), "unclear": Agreement(None, "unknown")},
    )
    assert comparison.exit_code(fail_on, uncertain) == code


def test_what_to_fail_on_must_be_known() -> None:
    comparison = Comparison({"base": measured("base", [1.0] * 6)})
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
    older = {"schema": "6.0", "measurements": document["measurements"], "margin": 0.01}
    assert Comparison.from_dict(older).baseline == "other"


def test_reads_only_what_was_measured_together() -> None:
    one = convtime.time_op(time.sleep, 0, device="cpu", max_samples=10, stop="count").to_dict()
    longer = {**one, "seconds": [1.0] * 11}
    document = codec.document("Comparison", {"measurements": {"a": one, "b": longer}})
    with pytest.raises(ValueError, match=r"number of samples, got {'a': 10, 'b': 11}"):
        Comparison.from_dict(document)
    with pytest.raises(ValueError, match="at least one measurement, got none"):
        Comparison({})
    with pytest.raises(ValueError, match=r"length >= 1 - at `\$.measurements`"):
        Comparison.from_dict({**document, "measurements": {}})


@pytest.mark.timing
def test_sampling_goes_on_until_the_verdict_is_settled() -> None:
    result = convtime.compare(
        {"fast": lambda: time.sleep(0.001), "slow": lambda: time.sleep(0.0013)},
        device="cpu",
        warmup=1,
        budget=20,
    )
    assert result.verdict("slow") == "slower"
    assert result.measurements["slow"].stop_reason == "settled"
    assert result.measurements["slow"].sampling_seconds < 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 0}, "margin must be more than 0, got 0"),
        ({"margin": "wide"}, "margin must be a number, got 'wide'"),
        ({"stop": "soon"}, "stop must be one of 'interval', .* got 'soon'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convtime.compare({"a": lambda: None, "b": lambda: None}, device="cpu", **options)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="compare has no option 'speed'; there are method, "):
        convtime.compare({"a": lambda: None}, speed=1)  # type: ignore[call-overload]


def test_names_that_were_not_compared_are_refused() -> None:
    result = convtime.compare({"a": lambda: None}, device="cpu", max_samples=10, warmup=1)
    with pytest.raises(KeyError, match="must be one of .*, got 'b'"):
        result.ratio("b")


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one candidate"):
        convtime.compare({})
    with pytest.raises(ValueError, match="at least one candidate"):
        convtime.compare([])
    for nothing in (torch.relu, "relu", 1):
        with pytest.raises(TypeError, match="takes callables or Candidates, in a mapping"):
            convtime.compare(nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be callable, got int for 'a'"):
        convtime.compare({"a": 1})  # type: ignore[dict-item]


@pytest.mark.timing
@pytest.mark.cuda
def test_the_same_kernel_compares_as_equal() -> None:
    x = torch.randn(64, 64, 56, 56, device="cuda")
    result = convtime.compare({"a": lambda: torch.relu(x), "b": lambda: torch.relu(x)})
    assert result.ratio("b").value == pytest.approx(1, abs=0.02)


@pytest.mark.timing
@pytest.mark.cuda
def test_a_candidate_that_leaves_the_gpu_alone_costs_the_others_nothing() -> None:
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
def test_candidates_with_arguments_are_compared_with_rotating_tensors() -> None:
    x = torch.randn(1 << 20, device="cuda")
    result = convtime.compare(
        [convtime.Candidate(torch.relu, x), convtime.Candidate(torch.relu, x)],
        cache="rotate",
        control=True,
    )
    assert {each.cache for each in result.measurements.values()} == {"rotate"}
    assert list(result.measurements) == ["relu", "relu 2", "control"]
    assert result.same_results["relu 2"].same is True
    judged = result.judge("relu 2")
    assert (judged.verdict, judged.reason) in (("same", None), ("uncertain", "control-differs"))
    assert judged.in_cycles is not None


def test_a_method_of_a_newer_version_can_be_shown() -> None:
    one = changed(events_of("relu", 2.0, 0.0), method="oracle")
    assert "judged on the time that 'oracle' gives" in flat(Comparison({"relu": one}))
