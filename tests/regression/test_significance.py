import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.regression.significance import (
    LogMedian,
    LogRatio,
    adjusted,
    exponential,
    geomean,
    normal_of_student,
    student_of_normal,
    student_quantile,
)
from tests.helpers.student import student_limit, student_tail

ERRORS = st.floats(0.002, 0.02)
DEGREES = st.integers(5, 40)


@given(DEGREES, st.floats(0.5, 5.0))
def test_student_and_normal_have_equal_tails(degrees: int, t: float) -> None:
    z = normal_of_student(t, degrees)
    assert student_of_normal(z, degrees) == pytest.approx(t)
    tail = student_tail(t, degrees)
    # What the approximation is off by falls with the degrees of freedom.
    assert math.erfc(z / math.sqrt(2)) / 2 == pytest.approx(tail, rel=0.28 / degrees)
    assert student_quantile(1 - tail, degrees) == pytest.approx(t, rel=0.5 / degrees**2)


def test_limits_of_student_and_normal() -> None:
    assert student_of_normal(2.5, math.inf) == 2.5
    assert student_of_normal(37.0, 1) == math.inf
    assert exponential(1e4) == math.inf
    assert exponential(1.0) == math.e
    assert geomean([]) is None


@settings(max_examples=40)
@given(
    st.floats(1e-6, 1e-3),
    st.floats(0.001, 0.2),
    st.floats(0.001, 0.2),
    st.integers(2, 40),
    st.floats(0.0, 0.01),
)
def test_errors_of_a_median_give_its_interval_back(
    median: float, below: float, above: float, count: int, between: float
) -> None:
    found = LogMedian.of_interval(
        median, median * math.exp(-below), median * math.exp(above), count, between
    )
    degrees = min(count - 1, 19)  # a run has at most 20 blocks
    limit = student_limit(0.025, degrees)
    tolerance = 0.01 if degrees > 3 else 0.5  # where the approximation is coarse
    assert found.value == pytest.approx(math.log(median))
    assert found.below * limit == pytest.approx(below, rel=tolerance)
    assert found.above * limit == pytest.approx(above, rel=tolerance)
    assert found.error == pytest.approx((found.below + found.above) / 2)
    assert (found.degrees_of_freedom, found.between_processes) == (degrees, between)
    assert found.processes == math.inf


def test_unknown_ends_of_an_interval_are_unknown_errors() -> None:
    found = LogMedian.of_interval(1e-5, 0.0, math.inf, 1, 0.01)
    assert (found.below, found.above, found.degrees_of_freedom) == (math.inf, math.inf, 1)
    assert LogRatio(found, found).interval() == (-math.inf, math.inf)
    assert LogRatio(found, found).p_value(0.01) == 1.0


@settings(max_examples=40)
@given(st.lists(ERRORS, min_size=6, max_size=6), DEGREES, st.floats(-0.15, 0.15), ERRORS)
def test_interval_and_p_value_of_a_ratio_use_the_errors_of_their_side(
    errors: list[float], degrees: int, value: float, margin: float
) -> None:
    """Of errors with equal degrees of freedom, the squares add up under one t."""
    over = LogMedian(value, errors[0], errors[1], degrees, errors[2], degrees + 1)
    under = LogMedian(0.0, errors[3], errors[4], degrees, errors[5], degrees + 1)
    ratio = LogRatio(over, under)
    down = math.hypot(over.below, under.above, errors[2], errors[5])
    up = math.hypot(over.above, under.below, errors[2], errors[5])
    limit = student_limit(0.025, degrees)
    low, high = ratio.interval()
    assert value - low == pytest.approx(limit * down, rel=0.01)
    assert high - value == pytest.approx(limit * up, rel=0.01)
    slower, faster = value - math.log1p(margin), math.log1p(-margin) - value
    t = max(slower / down, faster / up)
    expected = 1.0 if t <= 0 else 2 * student_tail(t, degrees)
    if t < 6:
        assert ratio.p_value(margin) == pytest.approx(min(1.0, expected), rel=0.1)


@pytest.mark.parametrize("side", ["over", "under"])
@pytest.mark.parametrize("known_between", [False, True])
def test_each_error_has_its_own_degrees_of_freedom(side: str, known_between: bool) -> None:
    for field, degrees in (("sampled", 6), ("between", 11)):
        sampled, between = (0.01, 0.0) if field == "sampled" else (0.0, 0.01)
        processes = math.inf if known_between else 12
        own = LogMedian(0.03, sampled, sampled, 6, between, processes)
        none = LogMedian(0.0, 0.0, 0.0, 3, 0.0)
        pair = LogRatio(own, none) if side == "over" else LogRatio(none, own)
        is_normal = known_between and field == "between"
        expected = math.erfc(3 / math.sqrt(2)) if is_normal else 2 * student_tail(3, degrees)
        assert pair.p_value(0.0) == pytest.approx(expected, rel=0.05)


@given(
    st.lists(st.tuples(st.floats(-0.1, 0.1), *[st.floats(0.001, 0.05)] * 4), min_size=1, max_size=8)
)
def test_geomean_averages_independent_errors_down_to_the_least_of_one_name(
    drawn: list[tuple[float, ...]],
) -> None:
    pairs = [
        LogRatio(LogMedian(value, a, b, 10**6, 0.0), LogMedian(0.0, c, d, 10**6, 0.0))
        for value, a, b, c, d in drawn
    ]
    values, a, b, c, d = (np.array(column) for column in zip(*drawn, strict=True))
    found = geomean(pairs)
    assert found is not None
    assert found.value == pytest.approx(math.exp(values.mean()))
    for end, sign, sides in ((found.low, -1, np.hypot(a, d)), (found.high, 1, np.hypot(b, c))):
        sides = 1.959964 * sides
        half = max(math.sqrt((sides**2).sum()) / len(pairs), sides.min())
        assert sign * (math.log(end) - values.mean()) == pytest.approx(half, rel=1e-4)


@given(st.lists(st.sampled_from([0.0, 1e-4, 0.003, 0.01, 0.01, 0.04, 0.3, 1.0]), max_size=12))
def test_adjusted_p_values_are_the_least_rates_of_false_discoveries(values: list[float]) -> None:
    """The estimated rate at a limit: how many are below it by chance, over how many are."""
    rates = {one: one * len(values) / sum(each <= one for each in values) for one in values}
    expected = [min(rates[other] for other in values if other >= own) for own in values]
    assert adjusted(values) == pytest.approx(expected)


@settings(max_examples=5)
@given(st.integers(0, 1000))
def test_intervals_hold_the_true_ratio_as_often_as_they_say(seed: int) -> None:
    """Means of a few normal values, whose standard errors follow a known distribution."""
    rng = np.random.default_rng(seed)
    count, held = 10, 0
    for samples in 0.01 * rng.standard_normal((400, 2, count)):
        sides = [
            LogMedian(each.mean(), error, error, count - 1, 0.0)
            for each, error in zip(samples, samples.std(1, ddof=1) / math.sqrt(count), strict=True)
        ]
        low, high = LogRatio(sides[0], sides[1]).interval()
        held += low <= 0 <= high
    assert 0.93 * 400 <= held <= 0.99 * 400
