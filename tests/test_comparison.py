from __future__ import annotations

import time

import pytest
import torch

import convtime
from convtime.comparison import Comparison


def test_compares_calls_of_known_duration() -> None:
    result = convtime.compare(
        {"fast": lambda: time.sleep(0.002), "slow": lambda: time.sleep(0.004)},
        device="cpu",
        max_samples=20,
        max_noise=0,
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
    drift = [1.0 + 3 * i / 40 for i in range(41)]
    base = convtime.Measurement.from_dict({**one.to_dict(), "seconds": drift})
    slower = convtime.Measurement.from_dict({**one.to_dict(), "seconds": [1.01 * s for s in drift]})
    ratio = Comparison({"base": base, "slower": slower}).ratio("slower")
    assert ratio.value == pytest.approx(1.01)
    assert ratio.high - ratio.low < 1e-9


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.995 + 0.001 * i for i in range(11)], "same"),
        ([1.001 + 0.0001 * i for i in range(11)], "same"),
        ([0.94 + 0.001 * i for i in range(11)], "faster"),
        ([1.05 + 0.001 * i for i in range(11)], "slower"),
        ([0.95 + 0.01 * i for i in range(11)], "uncertain"),
        ([1.002 + 0.004 * i for i in range(11)], "slower"),
    ],
)
def test_verdicts_follow_the_interval(ratios: list[float], verdict: str) -> None:
    one = convtime.time_op(time.sleep, 0, device="cpu", max_samples=10)
    base = convtime.Measurement.from_dict({**one.to_dict(), "seconds": [1.0] * len(ratios)})
    other = convtime.Measurement.from_dict({**one.to_dict(), "seconds": ratios})
    comparison = Comparison({"base": base, "other": other})
    assert comparison.verdict("other") == verdict
    with pytest.raises(ValueError, match="margin must be 0 or more, got -1"):
        comparison.verdict("other", margin=-1)


def test_names_that_were_not_compared_are_refused() -> None:
    result = convtime.compare({"a": lambda: None}, device="cpu", max_samples=10)
    with pytest.raises(KeyError, match="'b' was not compared"):
        result.ratio("b")


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one candidate"):
        convtime.compare({})
    with pytest.raises(TypeError, match="callables by name, as a mapping, got list"):
        convtime.compare([torch.relu])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be callable, got int for 'a'"):
        convtime.compare({"a": 1})  # type: ignore[dict-item]


@pytest.mark.cuda
def test_the_same_kernel_compares_as_equal() -> None:
    x = torch.randn(64, 64, 56, 56, device="cuda")
    result = convtime.compare({"a": lambda: torch.relu(x), "b": lambda: torch.relu(x)})
    assert result.ratio("b").value == pytest.approx(1, abs=0.02)
