"""Rooflines: rates against arithmetic intensity, below the ceilings of the device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.timing.measurement import Ceilings, Measurement
from convtime.timing.roofline import rooflines
from tests.helpers.figures import table
from tests.helpers.measurements import make

AMOUNTS = st.floats(1e7, 1e9)


def measured(flops: float | None, nbytes: float | None, ceilings: Ceilings) -> Measurement:
    seconds = tuple(1e-6 * (10 + step) for step in range(10))
    return make(seconds=seconds, flops=flops, nbytes=nbytes, ceilings=ceilings)


@settings(max_examples=20)
@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=3), AMOUNTS, AMOUNTS)
def test_points_and_roof_follow_from_flops_bytes_and_ceilings(
    amounts: list[tuple[float, float]], bandwidth_scale: float, peak_scale: float
) -> None:
    bandwidth, peak = 1e4 * bandwidth_scale, 1e6 * peak_scale
    ceilings = Ceilings(bandwidth, peak, "bfloat16")
    each = [measured(flops, nbytes, ceilings) for flops, nbytes in amounts]
    named = [(f"s{index}", f"l{index}", one) for index, one in enumerate(each)]
    (figure,) = rooflines("ops", named)
    roof, dots = table(figure, "roof"), table(figure, "label")
    flops, nbytes = np.transpose(amounts)
    # Of ten samples, the second and the ninth are the ends of the interval.
    for field, seconds in (("rate", 14.5e-6), ("low", 18e-6), ("high", 11e-6)):
        assert dots[field] == pytest.approx(list(flops / seconds / 1e12), rel=1e-3)
    assert dots["intensity"] == pytest.approx(list(flops / nbytes), rel=1e-3)
    ridge = peak / bandwidth
    ends = [0.5 * min(ridge, *(flops / nbytes)), ridge, 2 * max(ridge, *(flops / nbytes))]
    assert roof["intensity"] == pytest.approx(ends, rel=1e-3)
    attainable = np.minimum(peak, np.multiply(ends, bandwidth)) / 1e12
    assert roof["rate"] == pytest.approx(list(attainable), rel=1e-3)


def test_a_roofline_needs_flops_bytes_and_a_time() -> None:
    ceilings = Ceilings(1e12, 1e14, "bfloat16")
    for one in (
        measured(None, 1e6, ceilings),
        measured(1e9, None, ceilings),
        make(flops=1e9, nbytes=1e6, ceilings=None),
        make(flops=1e9, nbytes=1e6, ceilings=ceilings, seconds=(0.0,) * 6),
    ):
        assert list(rooflines("op", [("s", "l", one)])) == []
    few = make(flops=1e9, nbytes=1e6, ceilings=ceilings, seconds=(1e-6,) * 3)
    (figure,) = rooflines("op", [("s", "l", few)])
    dots = table(figure, "label")
    assert (dots["low"], dots["high"]) == ([None], [None])
