"""Verdicts of intervals, the reasons for uncertain ones, and what a gate reports."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convtime.timing.comparison import FINDS
from convtime.timing.verdict import (
    Failure,
    Ratio,
    Verdict,
    check_failures,
    contradiction,
    doubt_of_interval,
    exit_code_of,
    other_metric,
)
from tests.helpers.measurements import make

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


@given(
    value=st.floats(0.1, 10),
    below=st.floats(0, 0.5),
    above=st.floats(0, 0.5),
    margin=st.floats(0.001, 0.2),
)
def test_the_smallest_difference_is_the_margin_and_half_the_relative_width(
    value: float, below: float, above: float, margin: float
) -> None:
    ends = value * np.array([1 - below, 1 + above])
    found = Ratio(value, *map(float, ends)).smallest_difference(margin)
    assert found == pytest.approx(margin + np.mean([below, above]))
    assert found == pytest.approx(margin + np.ptp(ends / value) / 2)


@pytest.mark.parametrize("ends", [(1, -math.inf, math.inf), (0, 0, 0), (math.inf, 1, 2)])
def test_without_an_interval_no_difference_is_detectable(ends: tuple[float, ...]) -> None:
    assert Ratio(*ends).smallest_difference(0.01) == math.inf


@given(INTERVALS, st.integers(1, 5), st.booleans())
def test_a_wide_interval_is_told_from_one_at_the_margin(
    ends: list[int], margin: int, disturbed: bool
) -> None:
    low, high = (1 + end * UNIT for end in ends)
    pair = make(), make(name="x", disturbance="waited for a core" if disturbed else "")
    found = doubt_of_interval(low, high, margin * UNIT, *pair)
    if ends[1] - ends[0] <= 2 * margin:
        assert found.reason == "at-the-margin"
        assert f"{low:.4f} .. {high:.4f}" in found.sentence
    else:
        assert found.reason == ("disturbed" if disturbed else "wide-interval")
        assert f"± {50 * UNIT * (ends[1] - ends[0]):.2f}%" in found.sentence
        assert ("'x' waited for a core" in found.sentence) == disturbed
    few = doubt_of_interval(-math.inf, math.inf, margin * UNIT, *pair)
    assert (few.reason, "4 rounds are too few" in few.sentence) == ("too-few-samples", True)


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
        found = doubt_of_interval(0.5, 1.5, 0.01, *pair)
        assert found.reason == ("wide-interval" if said is None else "disturbed")
        assert said is None or said in found.sentence


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
    verdicts = get_args(Verdict)
    ratio = Ratio(1.25, 1.2, 1.3)
    for one in verdicts:
        for other in verdicts:
            said = contradiction(one, "busy", other, other_metric("busy"), ratio)
            expected = f"{one} in busy time, but {other} in span (1.2500 [1.2000, 1.3000])"
            assert said == ("" if one == other or "uncertain" in (one, other) else expected)
    assert (other_metric("span"), other_metric("sum")) == ("busy", "busy")
