"""A comparison as a table, with its verdicts in words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.measurement import Measurement
from tests.helpers.measurements import make
from tests.helpers.recorded import layers
from tests.helpers.texts import flat


def taking(seconds: float) -> Measurement:
    """Thirty equal samples, on a CPU."""
    return make(
        seconds=(seconds,) * 30, activities=(), sm_clocks_hz=(), discarded=(),
        method="cpu", method_requested="cpu", device="cpu",
    )  # fmt: skip


def compared(**seconds: float) -> Comparison:
    return Comparison({name: taking(each) for name, each in seconds.items()})


def test_a_table_has_a_row_for_each_and_a_sentence_for_each_verdict() -> None:
    found = Comparison(
        {"b": taking(2e-6), "a": taking(1e-6), "c": taking(1.05e-6)},
        baseline="a",
        same_results={"b": Agreement(True, "equal"), "c": Agreement(False, "off by 3")},
    )
    assert str(found).splitlines() == [
        "   time [95 %]                         ratio [95 %]  verdict       result",
        "─" * 73,
        "a  1.000 µs [1.000, 1.000]                           the baseline",
        "b  2.000 µs [2.000, 2.000]  2.0000 [2.0000, 2.0000]  slower        same",
        "c  1.050 µs [1.050, 1.050]  1.0500 [1.0500, 1.0500]  slower        OTHER",
        "",
        "b is slower than a: it takes 2.000 times as long (2.000 to 2.000)",
        "c is slower than a: it takes 5.00% more time (5.00% to 5.00%)",
        "c: OTHER RESULT: off by 3",
    ]
    assert repr(found) == (
        "<convtime.Comparison a 1.000 µs (the baseline), b 2.000 µs (slower), c 1.050 µs (slower)>"
    )
    assert "b: same result: equal" in flat(found)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((1.0, 0.5), "b is faster than a: it takes 50.00% less time (50.00% to 50.00%)"),
        ((1.0, 1.001), "b takes as long as a, within 1.00%"),
        ((1.0, 1.02), "b is slower than a: it takes 2.00% more time (2.00% to 2.00%)"),
    ],
)
def test_verdicts_are_said_in_words(seconds: Sequence[float], said: str) -> None:
    found = compared(a=seconds[0], b=seconds[1])
    assert str(found).splitlines()[-1] == said


def test_what_all_have_in_common_is_said_once() -> None:
    layer = layers()["float32 nchw layer1.0.conv2"]
    found = Comparison({"pytorch": layer.pytorch, "convtime": layer.convtime})
    alike, _, different = found.details().partition("alike in all:")[2].partition("\n\n")
    assert "method:      kernel (asked for auto" in alike
    assert alike.count("NVIDIA H200") == 1
    assert "method" not in different
    assert different.splitlines()[0].split() == ["pytorch", "convtime"]
    assert "median         138.1 µs   " in different
    assert "73.20 µs sm90_xmma_fprop" in different
    assert "73.02 µs sm90_xmma_fprop" in different
    alone = Comparison({"only": layer.pytorch})
    assert str(alone).splitlines()[-1].endswith("the baseline")
