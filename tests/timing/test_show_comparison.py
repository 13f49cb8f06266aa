"""A comparison as a table, with its verdicts in words."""

from __future__ import annotations

import re
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.measurement import Measurement
from tests.helpers.measurements import on_cpu
from tests.helpers.recorded import layers
from tests.helpers.texts import flat


def taking(seconds: float) -> Measurement:
    return on_cpu((seconds,) * 30, discarded=(), method_requested="cpu")


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


@settings(max_examples=50)
@given(st.floats(0.1, 4), st.sampled_from([0.0, 0.001, 0.01]))
def test_verdicts_are_said_in_words(near: float, spread: float) -> None:
    seconds = tuple(near + spread * step / 30 for step in range(30))
    found = Comparison({"a": taking(1.0), "b": on_cpu(seconds, method_requested="cpu")})
    words, ratio = str(found).splitlines()[-1], found.ratio("b")
    low, value, high = ratio.low, statistics.median(seconds), ratio.high
    if high < 0.99:
        said, numbers = "is faster than a", [100 * (1 - each) for each in (value, high, low)]
        assert "% less time" in words
    elif low > 1.01 and value < 2:
        said, numbers = "is slower than a", [100 * (each - 1) for each in (value, low, high)]
        assert "% more time" in words
    elif low > 1.01:
        said, numbers = "is slower than a", [value, low, high]
        assert "times as long" in words
    elif 0.99 <= low <= high <= 1.01:
        said, numbers = "takes as long as a", [1.0]
    else:
        said, numbers = "against a is uncertain", []
    assert words.startswith(f"b {said}")
    if numbers:
        assert [float(each) for each in re.findall(r"[0-9.]+", words)] == pytest.approx(
            numbers, abs=0.0051
        )


def test_what_all_have_in_common_is_said_once() -> None:
    layer = layers()["float32 nchw layer1.0.conv2"]
    found = Comparison({"pytorch": layer.pytorch, "convtime": layer.convtime})
    alike, _, different = found.details().partition("alike in all:")[2].partition("\n\n")
    assert "method:      kernel (asked for auto" in alike
    assert alike.count("NVIDIA H200") == 1
    assert "method" not in different
    assert different.splitlines()[0].split() == ["pytorch", "convtime"]
    assert "median         138.1 µs   " in different
    for kernel in ("73.20 µs sm90_xmma_fprop", "73.02 µs sm90_xmma_fprop"):
        assert kernel in different
    alone = Comparison({"only": layer.pytorch})
    assert str(alone).splitlines()[-1].endswith("the baseline")
