import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import convtime
from convtime.histories.change_points import deviation_of, find_changes
from tests.helpers.histories import noise
from tests.helpers.student import student_limit, student_tail

ruptures = pytest.importorskip("ruptures")

RATE = 0.0005


def dependent(seed: int, count: int, correlation: float) -> Any:
    """Noise of an autoregressive process."""
    values = noise(seed, count)
    for index in range(1, count):
        values[index] += correlation * values[index - 1]
    return values


def inflation(rest: Any) -> float:
    """By how much an autoregressive process increases a mean's variance, if it clearly is one."""
    correlation = float(rest[1:] @ rest[:-1] / (rest @ rest))
    clear = correlation >= 2 / math.sqrt(len(rest))
    return (1 + correlation) / (1 - correlation) if clear else 1.0


def t_squared(levels: list[Any], at: int) -> tuple[float, int]:
    """The squared t statistic of the step after a level, by the rest around all levels."""
    rest = np.concatenate([each - each.mean() for each in levels])
    before, after = levels[at], levels[at + 1]
    degrees = len(rest) - len(levels)
    variance = rest @ rest / degrees * inflation(rest)
    step = after.mean() - before.mean()
    return float(step**2 / (variance * (1 / len(before) + 1 / len(after)))), degrees


def assume_no_outliers(values: Any) -> None:
    windows = np.lib.stride_tricks.sliding_window_view(values, 9)
    local = np.pad(np.median(windows, axis=1), 4, mode="edge")
    assume((np.abs(values - local) < 5 * deviation_of(values)).all())


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.integers(0, 1000),
    st.integers(6, 40),
    st.integers(6, 40),
    st.floats(3.0, 12.0),
    st.sampled_from([0.0, 0.4, 0.6]),
)
def test_p_value_and_step_are_those_of_a_t_test_of_dependent_values(
    seed: int, left: int, right: int, t: float, correlation: float
) -> None:
    values = dependent(seed, left + right, correlation)
    values[left:] += t * values.std() * math.sqrt(1 / left + 1 / right)
    assume_no_outliers(values)
    levels = [values[:left], values[left:]]
    square, degrees = t_squared(levels, 0)
    scaled = (values - values.mean()) / deviation_of(values)
    proposed = ruptures.KernelCPD("linear", min_size=5).fit(scaled[:, None])
    # Dependence is estimated around the proposed levels.
    assume(proposed.predict(pen=2 * math.log(len(values))) == [left, len(values)])
    found = find_changes(values, [0] * left + [1] * right, 0.9999)
    if not found:  # it is no clearer than chance
        assert 2 * student_tail(math.sqrt(square), degrees) > 0.5
        return
    (change,) = found
    p = 2 * student_tail(math.sqrt(square), degrees)
    assert change.p_value == pytest.approx(p, rel=0.25, abs=1e-9)
    assert change.shift == pytest.approx(levels[1].mean() - levels[0].mean())
    rest = np.concatenate([each - each.mean() for each in levels])
    half = math.sqrt(rest @ rest / degrees * (1 / left + 1 / right))
    assert change.error == pytest.approx(student_limit(0.025, degrees) * half, rel=0.01)
    assert change.at == change.earliest == change.latest == left
    assert change.certainty == 1.0


def test_a_chosen_neighbor_multiplies_the_number_of_tests() -> None:
    """Its stretch ends at another change point, which could have been at any of its runs."""
    values = noise(11, 60)
    values[20:40] += 0.03
    values[40:] += 0.01
    levels = [values[:20], values[20:40], values[40:]]
    found = find_changes(values, [0] * 20 + [1] * 20 + [2] * 20, 0.9)
    assert [each.at for each in found] == [20, 40]
    for number, each in enumerate(found):
        square, degrees = t_squared(levels, number)
        expected = 40 * 2 * student_tail(math.sqrt(square), degrees)
        assert each.p_value == pytest.approx(expected, rel=0.1)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(8, 32), st.sampled_from([0.02, 0.03, 0.06]))
def test_place_and_its_interval_are_those_of_all_possible_places(
    seed: int, at: int, step: float
) -> None:
    """With flat priors of both levels and of the deviation's logarithm."""
    values = noise(seed, 40)
    values[at:] += step
    assume_no_outliers(values)
    found = find_changes(values, range(40), 0.01)
    assume(len(found) == 1)
    places = np.arange(5, 36)
    rests = np.array(
        [values[:each].var() * each + values[each:].var() * (40 - each) for each in places]
    )
    weights = (places * (40 - places)) ** -0.5 * (rests / rests.min()) ** -19.0
    weights /= weights.sum()
    windows = np.convolve(weights, np.ones(3), "same")
    best = int(places[np.argmax(windows + 1e-6 * weights)])
    (change,) = found
    assert change.at == best
    assert change.certainty == pytest.approx(windows[best - 5], rel=1e-6)
    ranked = np.argsort(-weights)
    enough = int(np.argmax(np.cumsum(weights[ranked]) >= 0.95)) + 1
    likely = {best, *places[ranked[:enough]].tolist()}
    assert (change.earliest, change.latest) == (min(likely), max(likely))


def test_steps_up_and_down_are_all_found() -> None:
    values = noise(2, 120)
    values[30:70] += 0.05
    values[95:] -= 0.05
    found = find_changes(values, range(120), RATE)
    assert [each.shift > 0 for each in found] == [True, False, False]
    for each, at in zip(found, (30, 70, 95), strict=True):
        assert abs(each.at - at) <= 1
        assert each.earliest <= at <= each.latest


@pytest.mark.parametrize(
    ("count", "series"),
    [(12, 300), (40, 300), (150, 150)]
    + [pytest.param(count, 4000, marks=pytest.mark.thorough) for count in (12, 40, 150)],
)
def test_noise_has_about_as_many_false_alarms_as_promised(count: int, series: int) -> None:
    false = sum(bool(find_changes(noise(n, count), range(count), 0.05)) for n in range(series))
    assert 0.01 < false / series < 0.08


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(40),
        np.tile([0.0, 1e-3], 20),
        noise(3, 9),
        np.concatenate([noise(4, 20), [1.0], noise(5, 20)]),
        np.concatenate([noise(6, 30), 0.5 + noise(7, 4)]),
    ],
    ids=["equal", "of a coarse clock", "few", "outlier", "four slow runs"],
)
def test_what_is_no_change(values: Any) -> None:
    assert find_changes(values, range(len(values)), RATE) == []


def test_an_outlier_does_not_count_for_levels_and_noise() -> None:
    values = noise(12, 60)
    values[30:] += 0.06
    (expected,) = find_changes(values, range(60), RATE)
    values[45] += 1.0
    (found,) = find_changes(values, range(60), RATE)
    assert (found.at, found.shift) == (expected.at, pytest.approx(expected.shift, abs=0.005))


@pytest.mark.parametrize(("count", "share"), [(60, 0.2), (200, 0.3)])
def test_runs_of_two_modes_are_no_change(count: int, share: float) -> None:
    false = 0
    for seed in range(10):
        slow = np.random.default_rng(1000 + seed).random(count) < share
        false += bool(find_changes(noise(seed, count, 0.002) + 0.05 * slow, range(count), RATE))
    assert false == 0


def test_a_step_between_equal_values_is_found() -> None:
    (found,) = find_changes([0.0] * 10 + [0.1] * 10, range(20), RATE)
    assert found.at == found.earliest == found.latest == 10


def test_a_change_is_between_commits() -> None:
    values = noise(8, 60)
    values[30:] += 0.06
    commits = [number // 5 for number in range(60)]
    (found,) = find_changes(values, commits, RATE)
    assert found.at == 30
    assert {found.earliest % 5, found.latest % 5} == {0}
    assert find_changes(values, [0] * 60, RATE) == []


def test_deviation_is_that_of_noise_around_levels() -> None:
    values = noise(13, 4000)
    values[2000:] += 1.0
    assert deviation_of(values) == pytest.approx(0.015, rel=0.05)
    assert math.isnan(deviation_of([1.0]))


def test_ruptures_is_named_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(convtime.InputError, match=r"pip install 'convtime\[history\]'"):
        convtime.history(tmp_path)
