import math
import statistics
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.exchange.other_tools import of_samples
from convtime.timing.measurement import Measurement
from convtime.upgrading.confirming import confirm, judge
from tests.helpers.student import student_limit, student_tail


def pair_of(speed: float, ratio: float) -> dict[str, tuple[Measurement, Measurement]]:
    """Times of one pair of processes, on a machine of some speed."""
    noise = [1 + 0.002 * (index % 5 - 2) for index in range(40)]
    old, new = (
        of_samples("0", [factor * speed * each for each in noise], "a test", {}, device="cpu")
        for factor in (1e-3, 1e-3 * ratio)
    )
    return {"0": (old, new)}


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.floats(0.8, 1.3), st.floats(-0.02, 0.02)), min_size=4, max_size=9),
    st.floats(-0.1, 0.1),
)
def test_findings_are_judged_by_the_ratios_within_each_pair(
    drawn: list[tuple[float, float]], change: float
) -> None:
    """By a t test of their logarithms, which vary by √2 · 0.5 % at least."""
    logs = [change + own for _, own in drawn]
    runs = [pair_of(speed, math.exp(log)) for (speed, _), log in zip(drawn, logs, strict=True)]
    (found,) = judge(runs, 0.03).changes
    mean = statistics.fmean(logs)
    error = max(statistics.stdev(logs), math.sqrt(2) * 0.005) / math.sqrt(len(logs))
    assert found.ratio is not None
    assert found.before is not None
    assert found.ratio.value == pytest.approx(math.exp(mean))
    assert found.after == pytest.approx(found.before * math.exp(mean))
    half = student_limit(0.025, len(logs) - 1) * error
    tolerance = 0.03 if len(logs) > 4 else 0.1
    assert math.log(found.ratio.high) - mean == pytest.approx(half, rel=tolerance)
    beyond = max(mean - math.log(1.03), math.log(0.97) - mean) / error
    p = 2 * student_tail(beyond, len(logs) - 1) if beyond > 0 else 1.0
    if p < 0.045:
        assert found.verdict == ("slower" if mean > 0 else "faster")
    elif p > 0.055:
        within = found.ratio.low >= 0.97 and found.ratio.high <= 1.03
        assert found.verdict == ("same" if within else "uncertain")


def test_findings_are_confirmed_in_fresh_pairs() -> None:
    asked = []

    def again(names: Collection[str]) -> Iterator[Any]:
        asked.append(names)
        yield from (pair_of(1.0, ratio) for ratio in (1.0, 1.001, 0.999, 1.0))

    found = confirm(pair_of(1.0, 1.05), again, 0.02, 4)
    assert asked == [{"0"}]
    assert found.pairs == 4
    assert found.changes["0"].verdict == "same"
    assert "at first slower" in found.changes["0"].sentence
    assert confirm(pair_of(1.0, 1.05), lambda _: iter([{}]), 0.02, 1).missing == (
        "whether 0 repeats: it gave no time again",
    )

    def interrupted(_: Collection[str]) -> Iterator[Any]:
        yield pair_of(1.0, 1.04)
        raise KeyboardInterrupt

    kept = confirm(pair_of(1.0, 1.05), interrupted, 0.02, 3)
    assert (kept.pairs, kept.interrupted) == (1, True)
    ratio = kept.changes["0"].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(1.04)
    assert kept.missing == ("whether the findings repeat: it was interrupted",)


def test_what_most_layers_have_in_common_is_no_clock() -> None:
    run = {name: pair_of(1.0, 1.3)["0"] for name in "abcdef"}
    for change in judge([run], 0.01).changes:
        assert change.verdict == "slower"
        assert change.attribution is not None
        assert change.attribution.cause != "hardware or clocks"
