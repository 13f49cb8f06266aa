"""Numbers with their units."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convtime.core.units import (
    format_bytes,
    format_estimate,
    format_seconds,
    format_share,
    format_signed,
)

SCALES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
TIMES = st.floats(1e-9, 1e4)


@given(TIMES, st.integers(1, 6))
def test_a_time_has_its_digits_in_the_unit_in_which_it_is_at_least_1(
    seconds: float, digits: int
) -> None:
    number, unit = format_seconds(seconds, digits).split()
    exponent = math.floor(math.log10(seconds))
    step = max(10.0 ** (exponent - digits + 1), 10.0**-9 if unit == "ns" and digits == 1 else 0)
    assert float(number) * SCALES[unit] == pytest.approx(
        seconds, abs=max(0.51 * step, 0.51 * SCALES[unit] if "." not in number else 0)
    )
    assert float(number) >= 1
    assert unit == "s" or float(number) < 1000
    if "." in number:
        assert len(number.replace(".", "")) == digits


def test_the_ends_of_times_are_told() -> None:
    assert format_seconds(9.9996e-7) == "1.000 µs"
    assert format_seconds(0.0) == "0.000 ns"
    assert format_seconds(math.nan) == "nan s"
    assert format_signed(-1.5e-6) == "−1.500 µs"
    assert format_signed(0.0) == "+0.000 ns"


@given(TIMES, st.floats(0, 0.5), st.floats(0, 0.5))
def test_an_interval_and_a_share_have_the_unit_of_the_whole(
    seconds: float, below: float, above: float
) -> None:
    low, high = seconds * (1 - below), seconds * (1 + above)
    told = re.fullmatch(r"(\S+) (\S+) \[(\S+), (\S+)\]", format_estimate(seconds, low, high))
    share = re.fullmatch(r"(\S+) of (\S+) (\S+)", format_share(low, seconds))
    assert told is not None
    assert share is not None
    assert f"{told[1]} {told[2]}" == f"{share[2]} {share[3]}" == format_seconds(seconds)
    ends = [float(each) * SCALES[told[2]] for each in (told[3], told[4], share[1])]
    assert ends == pytest.approx([low, high, low], abs=1e-3 * seconds)
    assert format_estimate(seconds, -math.inf, high) == format_seconds(seconds)


@given(st.integers(0, 2**49))
def test_bytes_are_below_1024_of_their_unit(count: int) -> None:
    assert [format_bytes(1024**power) for power in range(3)] == ["1 B", "1 KiB", "1 MiB"]
    number, unit = format_bytes(count).split()
    power = ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert float(number) * 1024**power == pytest.approx(count, rel=1e-3)
    assert (1024**power if power else 0) <= count < 1024 ** (power + 1)
