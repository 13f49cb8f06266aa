"""Offsets between clocks, of round trips that are drawn."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from convtime.distributed.clocks import CommonClock, Offset, bound_offset

seconds = st.integers(0, 2_000_000_000)


@given(
    st.integers(-(10**12), 10**12),
    st.lists(st.tuples(seconds, st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1),
)
@settings(max_examples=100)
def test_round_trips_bound_an_offset_from_both_sides(
    offset: int, drawn: list[tuple[int, int, int]]
) -> None:
    """Each trip takes some time there and some back; the truth is within the uncertainty."""
    trips = [(at, at + there + back, at + there + offset) for at, there, back in drawn]
    found = bound_offset(trips)
    bound = 1e9 * found.uncertainty
    assert abs(found.nanoseconds - offset) <= bound
    # No offset that all trips allow is left out, and the ends are such offsets.
    possible = [
        value
        for value in range(offset - 10_000, offset + 10_001, 500)
        if all(before + value <= told <= after + value for before, after, told in trips)
    ]
    assert all(abs(found.nanoseconds - value) <= bound for value in possible)
    shortest = min(there for _, there, _ in drawn) + min(back for _, _, back in drawn)
    assert bound == pytest.approx(shortest / 2 + 100, abs=1)  # the resolution of a reading
    assert found.at == trips[-1][1]


@given(seconds, st.integers(1, 10**9), st.floats(-1e6, 1e6), st.floats(-1e-3, 1e-3), seconds)
def test_between_two_exchanges_the_offset_changes_linearly(
    start: int, apart: int, offset: float, rate: float, local: int
) -> None:
    first = Offset(start, offset, 1e-6)
    last = Offset(start + apart, offset + rate * apart, 3e-6)
    clock = CommonClock(first, last)
    expected = local + offset + rate * (local - start)
    assert clock.common(local) == pytest.approx(expected, abs=1e-3)
    assert clock.uncertainty == CommonClock(last, first).uncertainty == 3e-6
    assert CommonClock(first).common(local) == local + offset
