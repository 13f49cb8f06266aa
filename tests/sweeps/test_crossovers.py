"""Crossovers of drawn curves, against a fine grid along the axis."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from convtime import Ratio
from convtime.sweeps.fastest import Crossover, crossings
from convtime.sweeps.plan import is_geometric
from convtime.timing.verdict import Judgement, Verdict

CERTAIN = ("faster", "slower")


def judged(value: float, half: float) -> Judgement:
    """A ratio whose interval has a relative half-width, and the verdict that it gives."""
    low, high = value / (1 + half), value * (1 + half)
    verdict: Verdict = "slower" if low > 1.01 else "faster" if high < 0.99 else "uncertain"
    return Judgement(verdict, Ratio(value, low, high), None, None, "", 0.0)


@st.composite
def curves(draw: Any) -> dict[float, Judgement]:
    xs = draw(st.lists(st.integers(1, 500), min_size=2, max_size=7, unique=True))
    ratios = st.integers(-15, 15).filter(bool).map(lambda each: 10 ** (each / 10))
    return {x: judged(draw(ratios), draw(st.floats(0.001, 0.5))) for x in sorted(xs)}


def roots(xs: Sequence[float], ratios: Sequence[float]) -> list[float]:
    """Where straight lines between points cross a ratio of 1, to a 10,000th of the range."""
    grid = np.linspace(xs[0], xs[-1], 10_001)
    is_above = np.interp(grid, xs, np.log(ratios)) > 0
    return [float(grid[place]) for place in np.flatnonzero(is_above[1:] != is_above[:-1])]


@given(curves(), st.booleans())
@settings(max_examples=60)
def test_a_crossover_is_where_lines_between_certain_and_opposite_ratios_reach_1(
    curve: dict[float, Judgement], geometric: bool
) -> None:
    found = [*crossings(curve, ("a", "b"), "batch", "", geometric=geometric)]
    points = [*curve.items()]
    places = [
        (start, end)
        for start, end in itertools.combinations(range(len(points)), 2)
        if {points[start][1].verdict, points[end][1].verdict} == {*CERTAIN}
        and not any(each.verdict in CERTAIN for _, each in points[start + 1 : end])
    ]
    assert [(each.after, each.before) for each in found] == [
        (points[start][0], points[end][0]) for start, end in places
    ]
    for each, (start, end) in zip(found, places, strict=True):
        between = points[start : end + 1]
        rises = between[0][1].verdict == "faster"  # of a, whose time is over b's
        assert (each.below, each.above) == (("a", "b") if rises else ("b", "a"))
        xs = [math.log(x) if geometric else x for x, _ in between]
        ends = [
            root
            for which in ("low", "high")
            for root in roots(xs, [getattr(each.ratio, which) for _, each in between])
        ]
        (at, *_) = roots(xs, [each.ratio.value for _, each in between])
        expected = (at, min(ends), max(ends))
        told = [math.log(x) if geometric else x for x in (each.at, each.low, each.high)]
        assert told == pytest.approx(expected, abs=(xs[-1] - xs[0]) / 5_000)


def test_ends_of_intervals_that_are_unknown_between_certain_points_are_skipped() -> None:
    unknown = Judgement("uncertain", Ratio(0.8, 0.0, math.inf), None, None, "", 0.0)
    curve = {1.0: judged(0.1, 0.01), 8.0: unknown, 64.0: judged(6.4, 0.01)}
    (found,) = crossings(curve, ("a", "b"), "batch", "kind=p", geometric=True)
    assert found.at == pytest.approx(10)
    assert found.low < 10 < found.high


def test_a_crossover_in_words() -> None:
    found = Crossover("batch", "kind=p", "a", "b", 10, 9.52, 10.5, 4, 16)
    assert str(found) == (
        "kind=p: b overtakes a at about batch 10 [9.52, 10.5], between the measured 4 and 16"
    )


@given(st.floats(1, 100), st.floats(1.3, 8), st.integers(3, 8))
def test_an_axis_is_geometric_where_its_ratios_are_more_even(
    first: float, step: float, count: int
) -> None:
    assert is_geometric([first * step**number for number in range(count)])
    assert not is_geometric([first + step * number for number in range(count)])
    assert not is_geometric([0, *(first * step**number for number in range(count))])
    assert is_geometric([first, 4.01 * first])
    assert not is_geometric([first, 3.99 * first])
    assert not is_geometric([first])
