from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch

import convtime
from convtime.results.activity import DeviceActivity
from convtime.results.comparison import Comparison

KERNEL = DeviceActivity("kernel", "relu", (1, 1, 1), (1, 1, 1), 16, 0, 0, (1e-6,))


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
    assert result.ratio("fast").value == 1
    assert "slow" in repr(result)


def test_ratios_pair_the_samples_of_a_round() -> None:
    """A drift that both share must not show: here the machine gets four times slower."""
    one = convtime.time_op(time.sleep, 0, device="cpu", max_samples=10, name="base")
    drift = [1.0 + 3 * step / 40 for step in range(41)]
    base = convtime.Measurement.from_dict({**one.to_dict(), "seconds": drift})
    slower = convtime.Measurement.from_dict(
        {**one.to_dict(), "seconds": [1.01 * sample for sample in drift]}
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
    one = convtime.time_op(time.sleep, 0, device="cpu", max_samples=10)
    base = convtime.Measurement.from_dict({**one.to_dict(), "seconds": [1.0] * len(ratios)})
    other = convtime.Measurement.from_dict({**one.to_dict(), "seconds": ratios})
    comparison = Comparison({"base": base, "other": other}, margin=0.01)
    assert comparison.verdict("other") == verdict
    assert comparison.exit_code() == exit_code
    assert f"{verdict} (within 1.00%)" in repr(comparison)
    assert Comparison(comparison.measurements, margin=0.2).verdict("other") == "same"


def events_of(name: str, microseconds: float, uncertainty: float) -> convtime.Measurement:
    one = convtime.time_op(time.sleep, 0, device="cpu", max_samples=10, name=name)
    return dataclasses.replace(
        one, seconds=(microseconds * 1e-6,) * 30, overhead_uncertainty=uncertainty * 1e-6
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


def test_few_rounds_have_no_verdict() -> None:
    base, other = (
        dataclasses.replace(events_of("relu", time, 0.0), seconds=(time,) * 5) for time in (1, 2)
    )
    comparison = Comparison({"base": base, "other": other})
    assert comparison.ratio("other").value == 2
    assert comparison.verdict("other") == "uncertain"


def test_a_candidate_without_gpu_work_leaves_the_others_their_verdicts() -> None:
    fast, slow, idle = (
        dataclasses.replace(events_of("relu", time, 0.0), method="kernel", activities=activities)
        for time, activities in ((1.0, (KERNEL,)), (2.0, (KERNEL,)), (0.0, ()))
    )
    comparison = Comparison({"fast": fast, "slow": slow, "idle": idle})
    assert comparison.verdict("slow") == "slower"
    assert comparison.verdict("idle") == "uncertain"
    assert "slow: 2.000 µs, ratio 2.0000" in repr(comparison)
    assert "idle: no GPU work>" in repr(comparison)
    from_idle = Comparison({"idle": idle, "fast": fast})
    assert from_idle.exit_code() == 0
    assert "idle: no GPU work, the baseline\n  fast: 1.000 µs>" in repr(from_idle)


def test_reads_only_what_was_measured_together() -> None:
    one = convtime.time_op(time.sleep, 0, device="cpu", max_samples=10, stop="count").to_dict()
    longer = {**one, "seconds": [1.0] * 11}
    document = {"schema": "1.0", "measurements": {"a": one, "b": longer}}
    with pytest.raises(ValueError, match=r"as many samples each, got {'a': 10, 'b': 11}"):
        Comparison.from_dict(document)
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
    assert len(result.measurements["slow"].seconds) < 2000


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
        convtime.compare({"a": lambda: None}, speed=1)  # type: ignore[call-arg]


def test_names_that_were_not_compared_are_refused() -> None:
    result = convtime.compare({"a": lambda: None}, device="cpu", max_samples=10, warmup=1)
    with pytest.raises(KeyError, match="'b' was not compared"):
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
    assert "nothing: no GPU work" in repr(result)


def test_a_method_of_a_newer_version_can_be_shown() -> None:
    one = dataclasses.replace(events_of("relu", 2.0, 0.0), method="oracle")
    assert "judged on what the method 'oracle' gives" in repr(Comparison({"relu": one}))
