"""Times at other clocks, from times at two known ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.timing.measurement import Measurement
from tests.helpers.measurements import changed, make


def at_clocks(clocks_mhz: Sequence[float], seconds: Sequence[float]) -> Measurement:
    clocks_hz = tuple(1e6 * clock for clock in clocks_mhz)
    return make(seconds=tuple(seconds), sm_clocks_hz=clocks_hz)


def taking(fixed: float, cycles: float, clocks_mhz: Sequence[float]) -> Measurement:
    return at_clocks(clocks_mhz, [fixed + cycles / (1e6 * clock) for clock in clocks_mhz])


@settings(max_examples=30)
@given(
    fixed=st.floats(0, 1e-3),
    cycles=st.floats(0, 1e6),
    low=st.floats(500, 1500),
    ratio=st.floats(1.06, 2),
    target=st.floats(200, 3000),
    split=st.booleans(),
)
def test_only_the_part_that_depends_on_the_clock_is_scaled(
    fixed: float, cycles: float, low: float, ratio: float, target: float, split: bool
) -> None:
    """Of one measurement, the lowest and the highest third count, in any order of the samples."""
    high = ratio * low
    if split:
        slow, fast = (taking(fixed, cycles, [clock] * 5) for clock in (low, high))
        found = [slow.at_clock(target, other=fast), fast.at_clock(target, other=slow)]
    else:
        clocks = np.random.default_rng(0).permutation([low] * 7 + [high] * 8)
        found = [taking(fixed, cycles, clocks.tolist()).at_clock(target)]
    for scaled in found:
        tiny = 1e-9 * (fixed + cycles / (1e6 * low))
        expected = fixed + cycles / (1e6 * target)
        assert scaled.seconds == pytest.approx(expected, rel=1e-6, abs=1e3 * tiny)
        assert scaled.fixed_seconds == pytest.approx(fixed, rel=1e-6, abs=1e3 * tiny)
        assert scaled.cycles == pytest.approx(cycles, rel=1e-6, abs=1e9 * low * tiny)
        assert (scaled.clock_mhz, scaled.measured_mhz) == (target, pytest.approx((low, high)))
        source = "this measurement and another" if split else "samples of this measurement"
        assert f"{source} at {low:.0f} and {high:.0f} MHz" in str(scaled)


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 2e-6), min_size=30, max_size=30), st.floats(500, 3000))
def test_noisy_times_give_no_negative_part(seconds: list[float], target: float) -> None:
    clocks = np.linspace(1000, 2000, 30)
    scaled = at_clocks(clocks.tolist(), seconds).at_clock(target)
    x, y = (np.median(np.reshape(each, (3, 10)), axis=1) for each in (1e6 * clocks, seconds))
    slope, intercept = np.polyfit(1 / x[[0, 2]], y[[0, 2]], 1)
    if slope < 0:
        slope, intercept = 0.0, (y[0] + y[2]) / 2
    elif intercept < 0:
        slope, intercept = (x[0] * y[0] + x[2] * y[2]) / 2, 0.0
    assert scaled.cycles == pytest.approx(slope, rel=1e-6, abs=1e-6)
    assert scaled.fixed_seconds == pytest.approx(intercept, rel=1e-6, abs=1e-15)
    assert scaled.seconds == pytest.approx(intercept + slope / (1e6 * target), rel=1e-6)


@pytest.mark.parametrize(
    ("clocks", "message"),
    [
        ([1900.0] * 30, "not available: .* taken at 1900 and 1900 MHz, less than 5% apart"),
        ([1000.0] * 15 + [1049.0] * 15, "not available: .* taken at 1000 and 1049 MHz"),
        ([1900.0] * 29 + [1400.0], "not available: .* taken at 1900 and 1900 MHz"),
        ([1400.0] * 7 + [1900.0] * 7, "not available: one of the two clocks has 4 samples"),
        ([1400.0, 1900.0], "not available: one of the two clocks has 0 samples"),
    ],
)
def test_one_clock_tells_nothing_of_others(clocks: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        taking(0.0, 1e5, clocks).at_clock(1700)


def test_bad_clocks_and_other_conditions_are_refused() -> None:
    assert taking(0.0, 1e5, [1000.0] * 15 + [1051.0] * 15).at_clock(1700).cycles > 0
    with pytest.raises(ValueError, match=r"not available: .* has 0 samples"):
        make(sm_clocks_hz=()).at_clock(1700)
    fast, slow = (taking(0.0, 1e5, [clock] * 10) for clock in (1980.0, 1500.0))
    with pytest.raises(ValueError, match="cache is 'cold' here and 'warm' in the other"):
        fast.at_clock(1700, other=changed(slow, cache="warm"))
    for clock_mhz in (0, -5, math.nan, math.inf):
        with pytest.raises(ValueError, match="clock_mhz must be a positive number, got"):
            fast.at_clock(clock_mhz, other=slow)
