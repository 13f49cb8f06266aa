import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convtime.regression.noise import FALSE_ALARMS, POWER, Noise, Repeats, margin_of
from tests.helpers.student import student_limit

MEDIANS = st.lists(
    st.one_of(st.floats(0.98, 1.02), st.sampled_from([1.0, 1.029, 1.031, 1.4])), min_size=1
)


@pytest.mark.parametrize("processes", [5, 20])
def test_a_margin_is_found_as_often_as_it_says_and_nothing_else_is(processes: int) -> None:
    """By a simulation that shares only the definition of the test with the formula."""
    rng = np.random.default_rng(processes)
    count, spread = 200_000, 0.01
    calibrated = spread * rng.standard_normal((count, processes))
    means, found_spreads = calibrated.mean(1), calibrated.std(1, ddof=1)
    threshold = student_limit(FALSE_ALARMS / 2, processes - 1) * found_spreads
    threshold *= math.sqrt(1 + 1 / processes)
    equal = spread * rng.standard_normal(count) - means
    assert np.mean(np.abs(equal) > threshold) == pytest.approx(FALSE_ALARMS, rel=0.25)
    margins = np.array([margin_of(each, processes) for each in found_spreads[:10_000]])
    looks = (spread * rng.standard_normal((2, len(margins))) + np.log1p(margins)) - means[:10_000]
    confirmed = np.all(looks > threshold[:10_000], axis=0)
    assert POWER <= np.mean(confirmed) < 0.99


@given(st.floats(0.001, 0.05), st.integers(6, 60))
def test_margin_is_threshold_and_power_of_students_t(spread: float, processes: int) -> None:
    """Two looks must find it, each with a power of 97.5 %."""
    limits = (student_limit(0.0005, processes - 1), student_limit(0.025, processes - 1))
    expected = math.expm1(spread * math.sqrt(1 + 1 / processes) * sum(limits))
    assert margin_of(spread, processes) == pytest.approx(expected, rel=0.02)


@given(MEDIANS, st.floats(0.0, 0.01))
def test_noise_is_that_of_the_processes_that_count(medians: list[float], tick: float) -> None:
    count = len(medians)
    logs = np.log(medians)
    distances = np.abs(logs - np.median(logs))
    is_far = (distances > 5 * 1.4826 * np.median(distances)) & (distances > math.log(1.03))
    is_far &= count >= 3
    errors = [0.0005 * (1 + index % 3) for index in range(count)]
    repeats = Repeats(tuple(medians), tuple(errors))
    assert repeats.outlying == tuple(np.flatnonzero(is_far))
    assert repeats.not_outlying == tuple(np.flatnonzero(~is_far))
    assert repeats.log_median == pytest.approx(logs[~is_far].mean(), abs=1e-12)
    is_pair = (~is_far).sum() > 1
    assert repeats.spread == pytest.approx(logs[~is_far].std(ddof=1) if is_pair else 0.0)
    assert repeats.times(2.0).log_median == pytest.approx(repeats.log_median + math.log(2))

    has_second_mode = is_far.sum() > max(1, count // 10)
    assert repeats.has_second_mode == has_second_mode
    counts = np.full(count, True) if has_second_mode else ~is_far
    noise = repeats.calibrated(tick).noise
    assert (noise is None) == (counts.sum() < 5)
    if noise is not None:
        spread = max(logs[counts].std(ddof=1), 0.0007, tick / math.sqrt(12))
        within = min(np.median(np.array(errors)[counts]), spread)
        assert noise.processes == counts.sum()
        assert (noise.spread, noise.within) == pytest.approx((spread, within))
        assert noise.between**2 == pytest.approx(spread**2 - within**2, abs=1e-12)
        assert noise.margin == pytest.approx(margin_of(spread, noise.processes))
        assert noise.too_noisy == (noise.margin > 0.1)


def test_unknown_errors_within_processes_count_as_none() -> None:
    noise = Repeats((1.0, 1.01) * 5, (math.inf,) * 10).calibrated(0.0).noise
    assert noise is not None
    assert noise.within == 0.0
    assert not Noise(5, 0.0, 0.01, 0.1).too_noisy


@pytest.mark.parametrize(
    ("medians", "errors", "said"),
    [
        ((1.0, 2.0), (0.1,), "error for each median, got 1 for 2"),
        ((1.0, 0.0), (0.1, 0.1), "medians must be above 0"),
        ((1.0, math.inf), (0.1, 0.1), "and finite"),
        ((), (), "medians must be above 0"),
    ],
)
def test_repeats_that_cannot_be_are_refused(
    medians: tuple[float, ...], errors: tuple[float, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Repeats(medians, errors)
